"""What nodes run, as readers of a job see it."""

from __future__ import annotations

from rallypoint.server.api.jobs.picture import job_message
from rallypoint.server.contract.errors import refusal_status
from rallypoint.server.core.model.node import Program
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_pb2
from support.core.coordinator import Bench

MANY = JobSpec(min_nodes=64, max_nodes=64)


def show(bench: Bench) -> job_pb2.Job:
    """Return the job as GetJob shows it."""
    return job_message(bench.state, bench.job(), bench.now_ms)


def program(arguments: str, user: str = "alice") -> Program:
    return Program("train.py", arguments, f"train.py {arguments}", user)


def test_command_of_many_nodes_is_shown_once() -> None:
    """With the first of its nodes, and how many there are."""
    bench = Bench(MANY)
    bench.join(*(f"n{number:02}" for number in range(40)), program=program("1"))

    (command,) = show(bench).commands
    assert ("default", "alice", "train.py 1") == (command.role, command.user, command.command_line)
    assert [f"n{number:02}" for number in range(16)] == list(command.node_names)
    assert 40 == command.node_count


def test_commands_that_differ_are_shown_apart() -> None:
    """By role, user and arguments, also where the shown part of long arguments is equal."""
    bench = Bench(MANY)
    bench.join("a", program=program("1"))
    bench.join("b", program=program("1", user="bob"))
    bench.join("c", program=program("1"), role="other")
    bench.join("d", program=Program("train.py", "2", "train.py 1", "alice"))
    bench.join("e", program=program("1"))
    bench.join("f")

    commands = show(bench).commands
    assert [["a", "e"], ["b"], ["c"], ["d"]] == [list(one.node_names) for one in commands]


def test_commands_are_bounded() -> None:
    """Where every node has its own arguments, only the first are shown, and all are counted."""
    bench = Bench(MANY)
    for number in range(40):
        bench.join(f"n{number:02}", program=program(str(number)))

    job = show(bench)
    assert (16, 40) == (len(job.commands), job.command_count)
    assert [f"train.py {number}" for number in range(16)] == [
        command.command_line for command in job.commands
    ]


def test_refusal_names_programs_nodes_and_the_flag() -> None:
    """The text is one line for a person; the detail has the same facts for a program."""
    bench = Bench(MANY)
    bench.join("a", program=Program("alice.py"))
    refusal = bench.agent("b", program=Program("-m pkg.bob")).hello().refusal
    assert refusal is not None
    status = refusal_status(refusal)

    assert (
        "node b runs -m pkg.bob, but a of job job runs alice.py: use another --job-id, "
        "or --allow-different-programs"
    ) == status.message
    details = [
        detail
        for packed in status.details
        if packed.Unpack(detail := details_pb2.ProgramMismatch())
    ]
    assert [
        details_pb2.ProgramMismatch(
            job_id="job",
            node_name="b",
            program="-m pkg.bob",
            other_node_name="a",
            other_program="alice.py",
        )
    ] == details
