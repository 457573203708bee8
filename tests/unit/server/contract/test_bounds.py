"""The ranges of single fields: wishes are refused, facts are clamped, echoes are kept."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.base import limits
from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.server.contract.pages import PAGE_MAX
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import (
    job_pb2,
    job_service_pb2,
    node_pb2,
    node_service_pb2,
    round_pb2,
)
from rallypoint.wire.limits import DAY_MS, NUMBER_MAX, Kind, client_messages, find_rule

NOW_MS = 1_800_000_000_000
RULES = {
    f"{message.name}.{field.name}": rule
    for message in client_messages()
    for field in message.fields
    if (rule := find_rule(field)) is not None
}


def without_rule(message: Descriptor) -> list[str]:
    """Return the fields that have no range and need one."""
    return [
        f"{message.name}.{field.name}"
        for field in message.fields
        if find_rule(field) is None
        and field.cpp_type != field.CPPTYPE_BOOL
        and (
            field.message_type is None
            or field.is_repeated
            or field.message_type.full_name.startswith("google.")
        )
    ]


def test_every_field_of_every_client_message_has_a_rule() -> None:
    """A new field without a range fails here."""
    assert [] == [name for message in client_messages() for name in without_rule(message)]
    assert {"SessionRequest", "Hello", "WorkerExit", "CordonNodeRequest", "ListJobsRequest"} < {
        message.name for message in client_messages()
    }


def test_check_of_a_specification_changes_nothing() -> None:
    """It is remembered. So all fields are wishes, but for enums, whose values are kept anyway."""
    rules = {name: rule for name, rule in RULES.items() if name.startswith("JobSpec.")}

    assert ["JobSpec.hang_action"] == [
        name for name, rule in rules.items() if rule.kind is not Kind.WISH
    ]
    assert job_pb2.JobSpec.DESCRIPTOR.fields_by_name["hang_action"].enum_type is not None
    assert not any(rule.ahead_ms for rule in rules.values())


@pytest.mark.parametrize("more", [b"", b"\xfa\x7f" + b"\xa0\x1f" + b"x" * 4_000])
def test_specification_is_refused_each_time(more: bytes) -> None:
    """Also one that is too large to be remembered."""
    for _ in range(2):
        hello = agent_pb2.Hello(spec=job_pb2.JobSpec(min_nodes=1, max_nodes=16_385))
        hello.spec.MergeFromString(more)

        with pytest.raises(InvalidMessage) as caught:
            check(hello)

        assert "spec.max_nodes" == caught.value.path


def test_field_without_a_rule_is_found() -> None:
    """Messages that only the coordinator sends need no ranges."""
    assert {"Job.job_id", "Job.nodes", "Job.age"} <= set(without_rule(job_pb2.Job.DESCRIPTOR))


def test_texts_and_lists_are_bounded() -> None:
    """A string has a longest length, a list a highest number of entries."""
    unbounded = [
        f"{message.name}.{field.name}"
        for message in client_messages()
        for field in message.fields
        if (rule := find_rule(field)) is not None
        and (
            (field.is_repeated and not rule.items_max)
            or (field.type == field.TYPE_STRING and not (rule.chars_max or rule.bytes_max))
            or (rule.high > NUMBER_MAX)
        )
    ]

    assert [] == unbounded


@pytest.mark.parametrize(
    ("constant", "field", "limit"),
    [
        (limits.JOB_ID_BYTES_MAX, "Hello.job_id", "bytes_max"),
        (limits.JOB_ID_BYTES_MAX, "GetJobRequest.job_id", "bytes_max"),
        (limits.NODES_PER_JOB_MAX, "JobSpec.max_nodes", "high"),
        (limits.NODES_PER_JOB_MAX, "RoundHeader.group_world_size", "high"),
        (limits.COUNT_MAX, "JobSpec.max_restarts", "high"),
        (limits.COUNT_MAX, "JobSpec.max_reformations", "high"),
        (limits.COUNT_MAX, "JobSpec.crash_loop", "high"),
        (limits.QUARANTINE_AFTER_MAX, "JobSpec.quarantine_after", "high"),
        (limits.COUNT_MAX, "Hello.node_rank", "high"),
        (limits.TEXT_CHARS_MAX, "Goodbye.text", "chars_max"),
        (limits.PROGRAM_CHARS_MAX, "Program.name", "chars_max"),
        (limits.PROGRAM_CHARS_MAX, "Program.user", "chars_max"),
        (limits.COMMAND_LINE_CHARS_MAX, "Program.command_line", "chars_max"),
        (limits.TEXT_CHARS_MAX, "Program.worker_command", "chars_max"),
        (limits.MESSAGE_CHARS_MAX, "ErrorRecord.message", "chars_max"),
        (limits.TRACEBACK_CHARS_MAX, "ErrorRecord.traceback", "chars_max"),
        (limits.DURATION_MS_MAX, "JobSpec.join_timeout", "high"),
        (limits.HEARTBEAT_MS_MIN, "JobSpec.heartbeat_interval", "low"),
        (limits.HEARTBEAT_MS_MAX, "JobSpec.heartbeat_interval", "high"),
        (limits.LEASE_MS_MIN, "JobSpec.lease", "low"),
        (limits.LEASE_MS_MAX, "JobSpec.lease", "high"),
        (PAGE_MAX, "ListJobsRequest.page_size", "high"),
        (PAGE_MAX, "ListNodesRequest.page_size", "high"),
    ],
)
def test_command_line_and_contract_agree(constant: int, field: str, limit: str) -> None:
    """The command line refuses early what the coordinator would refuse."""
    assert constant == getattr(RULES[field], limit)


def check_exit(exit: node_pb2.WorkerExit) -> node_pb2.WorkerExit:
    """Return an exit after the check of a report with it."""
    report = agent_pb2.Exited(workers=[node_pb2.Worker(local_rank=0, exit=exit)])
    check(report, NOW_MS)
    return report.workers[0].exit


@pytest.mark.parametrize("name", ["age", "run_time", "outlived_signal_for"])
@pytest.mark.parametrize(
    ("seconds", "nanos", "expected_s"),
    [
        (31 * 86_400, 0, 31 * 86_400),
        (2**63 - 1, 999_999_999, 3_155_760_000),
        (-1, 0, 0),
        (-(2**63), -999_999_999, 0),
        (0, 2_147_483_647, 2.147),
    ],
)
def test_duration_of_a_fact_is_clamped(
    name: str, seconds: int, nanos: int, expected_s: float
) -> None:
    """A worker that ran for 31 days can be reported; an impossible duration refuses no report."""
    exit = node_pb2.WorkerExit(exit_code=1)
    getattr(exit, name).CopyFrom(Duration(seconds=seconds, nanos=nanos))

    duration = getattr(check_exit(exit), name)

    assert expected_s == duration.seconds + duration.nanos / 1e9


@pytest.mark.parametrize(
    ("exit", "expected"),
    [
        (node_pb2.WorkerExit(exit_code=256), node_pb2.WorkerExit(exit_code=255)),
        (node_pb2.WorkerExit(exit_code=-9), node_pb2.WorkerExit(exit_code=255)),
        (node_pb2.WorkerExit(exit_code=0), node_pb2.WorkerExit(exit_code=0)),
        (node_pb2.WorkerExit(signal=0), node_pb2.WorkerExit(signal=127)),
        (node_pb2.WorkerExit(signal=2**32 - 1), node_pb2.WorkerExit(signal=127)),
        (node_pb2.WorkerExit(signal=9), node_pb2.WorkerExit(signal=9)),
        (node_pb2.WorkerExit(failed_at=Timestamp(seconds=2**62)), node_pb2.WorkerExit()),
        (node_pb2.WorkerExit(failed_at=Timestamp(seconds=-1)), node_pb2.WorkerExit()),
        (
            node_pb2.WorkerExit(stderr_tail="\x1b]0;pwn\x07\x1b[31mred\x1b[0m\r\nnext\0\a\tend"),
            node_pb2.WorkerExit(stderr_tail="red\nnext\ufffd\ufffd\tend"),
        ),
        (
            node_pb2.WorkerExit(stderr_tail="start" + "x" * 1_000_000 + "end"),
            node_pb2.WorkerExit(stderr_tail="x" * 4_093 + "end"),
        ),
        (
            node_pb2.WorkerExit(error_file="/tmp/a\nb\u202e" + "c" * 2_000),
            node_pb2.WorkerExit(error_file="/tmp/a b" + "c" * 1_016),
        ),
    ],
)
def test_facts_of_an_exit_are_cleaned(
    exit: node_pb2.WorkerExit, expected: node_pb2.WorkerExit
) -> None:
    """A failure stays a failure, and no text of a worker can change the console of a reader."""
    assert expected == check_exit(exit)


def test_lists_of_facts_are_cut_and_clamped() -> None:
    """A process id is 0 to 2^22."""
    blocked = agent_pb2.Blocked(pids=[-5, 2**31 - 1, *range(100)])
    check(blocked)

    assert [0, 4_194_304, *range(62)] == list(blocked.pids)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (agent_pb2.SessionRequest(session_id="x" * 32), "session_id: must be 32 lower-case hexa"),
        (agent_pb2.SessionRequest(session_id="0" * 33), "session_id: is too long: at most 32 char"),
        (agent_pb2.SessionRequest(connection=1), "session_id: must be 32 lower-case hexadecimal"),
        (agent_pb2.SessionRequest(session_id="0" * 32), f"connection: must be 1 to {NUMBER_MAX}"),
        (agent_pb2.SessionRequest(connection=2**53), f"connection: must be 1 to {NUMBER_MAX}"),
        (agent_pb2.SessionRequest(sequence=2**64 - 1), f"sequence: must be 0 to {NUMBER_MAX}"),
        (agent_pb2.SessionRequest(epoch=2**64 - 1), "epoch: is more than 1 day ahead of our clock"),
        (agent_pb2.SessionRequest(epoch=NOW_MS + DAY_MS + 1), "epoch: is more than 1 day ahead"),
        (agent_pb2.Hello(run=2**64 - 1), "run: must be 0 to 4503599627370496"),
        (agent_pb2.Hello(job_id="a\0b"), "job_id: must be printable"),
        (agent_pb2.Hello(job_id="\N{LATIN SMALL LETTER SHARP S}" * 128), "job_id: is too long: at"),
        (agent_pb2.Hello(role="r\n"), "role: must be printable"),
        (agent_pb2.Hello(labels={"a": "\x1b[31m"}), "labels: must be printable"),
        (agent_pb2.Hello(labels={"": "b"}), "labels: has an empty key"),
        (agent_pb2.Hello(labels={"a": "b" * 257}), "labels: has too long an entry: at most 256"),
        (agent_pb2.Hello(labels={str(i): "" for i in range(33)}), "labels: has too many entries"),
        (agent_pb2.Hello(local_world_size=4_097), "local_world_size: must be 1 to 4096"),
        (agent_pb2.Hello(ready=agent_pb2.Ready()), "ready.master_port: must be 1 to 65535"),
        (
            agent_pb2.Hello(spec=job_pb2.JobSpec(no_retry_exit_codes=[3, 256])),
            "spec.no_retry_exit_codes[1]: must be 1 to 255",
        ),
        (
            agent_pb2.Hello(spec=job_pb2.JobSpec(join_timeout=Duration(seconds=2_592_001))),
            "spec.join_timeout: must be between 0 s and 30 days",
        ),
        (
            agent_pb2.Hello(spec=job_pb2.JobSpec(join_timeout=Duration(nanos=2_147_483_647))),
            "spec.join_timeout: must be between 0 s and 30 days",
        ),
        (
            agent_pb2.Exited(workers=[node_pb2.Worker(local_rank=0), node_pb2.Worker()]),
            "workers[1].local_rank: is missing",
        ),
        (round_pb2.RoundHeader(master_port=2**32 - 1), "master_port: must be 1 to 65535"),
        (job_service_pb2.ListJobsRequest(page_token="a\0"), "page_token: must be printable"),
        (job_service_pb2.GetJobRequest(), "job_id: must not be empty"),
        (
            node_service_pb2.CordonNodeRequest(job_id="j", node_name="a b"),
            "node_name: must be prin",
        ),
    ],
)
def test_wish_out_of_range_is_refused(message: Message, problem: str) -> None:
    """With the path of its field, and in the right words."""
    with pytest.raises(InvalidMessage) as caught:
        check(message, NOW_MS)

    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    "message",
    [
        agent_pb2.SessionRequest(
            session_id="0f" * 16, connection=NUMBER_MAX, epoch=NOW_MS + DAY_MS
        ),
        job_pb2.JobSpec(min_nodes=1, max_nodes=16_384, max_restarts=2**31 - 1),
        round_pb2.RoundHeader(
            number=2**52,
            run=2**52,
            world_size=1,
            group_world_size=1,
            master_addr="fe80::1%eth0",
            master_port=65_535,
            reason=999,  # type: ignore[arg-type]  # of a newer coordinator
        ),
        agent_pb2.Goodbye(reason=999, text="bye"),  # type: ignore[arg-type]  # of a newer agent
        node_pb2.Worker(local_rank=0, state=999),  # type: ignore[arg-type]
        job_service_pb2.ListJobsRequest(),
        node_service_pb2.CordonNodeRequest(job_id="a job", node_name="n\u00f6de-1_x", reason="r"),
    ],
)
def test_what_is_in_range_is_kept(message: Message) -> None:
    """Ends included, and values of enums that only a newer version knows."""
    before = message.SerializeToString(deterministic=True)
    check(message, NOW_MS)

    assert before == message.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "::1", "fe80::1%eth0", "node-7", "a.b.example.com.", "my_service", "127.0.0.1"],
)
def test_addresses_are_taken(address: str) -> None:
    """Of every form that workers can reach."""
    header = round_pb2.RoundHeader(
        number=1, run=1, world_size=1, group_world_size=1, master_port=1, master_addr=address
    )
    check(header)

    assert address == header.master_addr


def test_enum_of_a_wish_has_to_be_known() -> None:
    """A view that only a newer version knows would be shown as another one."""
    check(job_service_pb2.GetJobRequest(job_id="a", view=job_pb2.JOB_VIEW_BASIC))
    newer = job_service_pb2.GetJobRequest(job_id="a")
    newer.view = 999  # type: ignore[assignment]

    with pytest.raises(InvalidMessage, match="view: has the value 999, which is unknown here"):
        check(newer)
