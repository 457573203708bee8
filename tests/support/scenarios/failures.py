"""The results of a failed job: report, error files, exit codes, and signals."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from dataclasses import replace
from pathlib import Path

from support.processes.commands import Command
from support.processes.world import World
from support.torchrun.launchers import RUN_LIMIT_S, Drive, Launcher, Ran, scenario

ROOT = "Root Cause (first observed failure):"
SIGNALLED = "a process that a signal ended says so with 128+n, as a shell does"


STOPPED = "a worker that the launcher has ended itself has not failed"


def report(ran: Ran) -> list[str]:
    """Return the lines of the printed report, from its title to its end; blanks count once."""
    lines = [re.sub(r"(?<=\S)\s+", " ", line).rstrip() for line in ran.err.splitlines()]
    return lines[next(at for at, line in enumerate(lines) if line.endswith(" FAILED")) :]


def root_cause(ran: Ran) -> dict[str, str]:
    """Return the fields of the failure that the report names as the first, by name."""
    lines = report(ran)
    fields: dict[str, str] = {}
    for line in lines[lines.index(ROOT) + 1 :]:
        if field := re.fullmatch(r"  (\w+) ?: (.*)", line):
            fields.setdefault(field[1], field[2])
    return fields


@scenario("--nproc-per-node 2 --shutdown-timeout 20 tell.py sync 0/obey 1/exit=7")
def failure(ran: Ran) -> None:
    """The report names who failed first, how, and whom the launcher has ended for it."""
    first, second = ran.told
    lines = report(ran)
    cause = root_cause(ran)

    assert ran.codes == [1]
    assert lines[0] == "tell.py FAILED"
    assert lines[1] == "-" * len(lines[1])
    assert cause["rank"] == "1 (local_rank: 1)"
    assert cause["exitcode"] == f"7 (pid: {second.pid})"
    assert cause["error_file"] == "<N/A>"
    assert set(cause) >= {"time", "host", "traceback"}
    others = lines[3 : lines.index(ROOT)]
    assert lines[2].startswith("Failures")
    assert (f"  exitcode : -15 (pid: {first.pid}) (SIGTERM)" in others) == ran.expected(
        torchrun=True, node_agent=False, why=STOPPED
    )
    assert ("  stopped by the agent, not failed: rank 0" in others) == ran.expected(
        torchrun=False, node_agent=True, why=STOPPED
    )


@scenario("tell.py signal=SIGKILL", env={"TORCHELASTIC_ERROR_FILE": "root.json"})
def death_by_a_signal(ran: Ran) -> None:
    """A signal is named."""
    (told,) = ran.told
    cause = root_cause(ran)

    assert ran.codes == [1]
    assert "  <NO_OTHER_FAILURES>" in report(ran)
    assert cause["exitcode"] == f"-9 (pid: {told.pid}) (SIGKILL)"
    assert cause["traceback"] == f"Signal 9 (SIGKILL) received by PID {told.pid}"
    assert (ran.folder / "root.json").exists() == ran.expected(
        torchrun=False,
        node_agent=True,
        why="a reader of the root cause gets one, even if the worker could not write it",
    )


@scenario(
    "--nproc-per-node 2 --log-dir logs recorded.py sync 0/obey 1/raise=boom",
    env={"TORCHELASTIC_ERROR_FILE": "root.json"},
)
def recorded_failure(ran: Ran) -> None:
    """What `@record` wrote is in the report, stays on disk, and goes to the launcher's own error
    file."""
    second = ran.told[1]
    ((place, text),) = ran.files("logs").items()
    error = json.loads(text)["message"]
    root = json.loads((ran.folder / "root.json").read_text())["message"]
    cause = root_cause(ran)

    assert ran.codes == [1]
    assert place == "attempt_0/1/error.json"
    assert error["message"] == "RuntimeError: boom"
    assert "in obey" in error["extraInfo"]["py_callstack"]
    assert {**error, "errorCode": 1} == root  # also if it was slow to exit, and was stopped
    assert cause["rank"] == "1 (local_rank: 1)"
    assert cause["exitcode"] == f"1 (pid: {second.pid})"
    assert cause["error_file"] == second.env["TORCHELASTIC_ERROR_FILE"]
    assert cause["traceback"] == "Traceback (most recent call last):"
    assert "  RuntimeError: boom" in report(ran)


@scenario("""tell.py 'error={"message": "out of paper", "timestamp": 86400}' exit=5""")
def error_file_with_a_text(ran: Ran) -> None:
    """An error file may hold a text alone; its time is the failure's. The file that
    the report names is there."""
    cause = root_cause(ran)

    assert ran.codes == [1]
    assert cause["exitcode"] == f"5 (pid: {ran.told[0].pid})"
    assert cause["traceback"] == "out of paper"
    assert cause["time"].startswith("1970-01-0")
    assert json.loads(Path(cause["error_file"]).read_text())["message"] == "out of paper"


@scenario("--run-path --log-dir logs tell.py raise=boom")
def failure_of_a_run_path(ran: Ran) -> None:
    """With --run-path an exception is recorded without `@record`."""
    ((place, text),) = ran.files("logs").items()

    assert ran.codes == [1]
    assert place == "attempt_0/0/error.json"
    assert json.loads(text)["message"]["message"] == "RuntimeError: boom"
    assert "RuntimeError: boom" in "\n".join(report(ran))


@scenario("--run-path tell.py exit=6")
def exit_code_of_a_run_path(ran: Ran) -> None:
    """A script that ends the interpreter ends its worker."""
    assert ran.codes == [1]
    assert root_cause(ran)["exitcode"] == f"6 (pid: {ran.told[0].pid})"


@scenario("--nproc-per-node 2 --max-restarts 2 tell.py sync 1/exit=3@0 0/signal=SIGABRT@1")
def restarts(ran: Ran) -> None:
    """All workers are started again after a failure, as often as they may be."""
    assert ran.codes == [0]
    assert ran.values("TORCHELASTIC_RESTART_COUNT", "RANK", "TORCHELASTIC_MAX_RESTARTS") == [
        f"{count} {rank} 2" for count in range(3) for rank in range(2)
    ]


@scenario("--max-restarts 1 tell.py exit=3@0 exit=4@1")
def restarts_used_up(ran: Ran) -> None:
    """The report is about the last attempt."""
    assert ran.codes == [1]
    assert len(ran.told) == 2
    assert root_cause(ran)["exitcode"] == f"4 (pid: {ran.told[1].pid})"


@scenario("--max-restarts 6 tell.py exit=3")
def crash_loop(ran: Ran) -> None:
    """A job that fails repeatedly in the same way, right after its start, will not recover."""
    assert ran.codes == [1]
    assert len(ran.told) == ran.expected(
        torchrun=7, node_agent=5, why="--crash-loop 5 ends the run early; 0 turns it off"
    )


@scenario("--no-python ./tell.sh exit=3")
def failure_of_a_program(ran: Ran) -> None:
    """Without Python the report has the program's name."""
    assert ran.codes == [1]
    assert report(ran)[0] == "./tell.sh FAILED"


@scenario("-m package.tell exit=3")
def failure_of_a_module(ran: Ran) -> None:
    """A module has its own."""
    assert ran.codes == [1]
    assert report(ran)[0] == "package.tell FAILED"


def _send(signum: signal.Signals, *manners: str) -> Drive:
    """Return a drive that has each worker take this signal in its manner, and sends it to the
    launcher; every worker says that it came."""

    def drive(world: World, commands: list[Command]) -> None:
        world.mailbox.wait("started", len(manners), limit_s=RUN_LIMIT_S)
        workers = sorted(world.mailbox.started(), key=lambda worker: worker.rank)
        for worker, manner in zip(workers, manners, strict=True):
            worker.tell(signum.name.removeprefix("SIG"), manner)
        world.mailbox.wait("ready", len(manners))
        commands[0].signal(signum)
        came = world.mailbox.wait("signalled", len(manners))

        assert {said.fields["signum"] for said in came} == {signum}

    return drive


@scenario(
    "--nproc-per-node 2 --shutdown-timeout 1 tell.py obey",
    drive=_send(signal.SIGTERM, "obey", "ignore"),
)
def sigterm(ran: Ran) -> None:
    """SIGTERM reaches the workers; one that ignores it is killed after the grace."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=143, why=SIGNALLED)]


@scenario(
    "tell.py obey",
    env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"},
    drive=_send(signal.SIGINT, "ignore"),
)
def sigint(ran: Ran) -> None:
    """SIGINT reaches the workers as itself; the grace may come from the environment."""
    assert ran.codes == [ran.expected(torchrun=1, node_agent=130, why=SIGNALLED)]


@scenario("--signals-to-handle SIGTERM,SIGUSR1 tell.py obey", drive=_send(signal.SIGUSR1, "obey"))
def sigusr1(ran: Ran) -> None:
    """A handled signal reaches the workers unchanged; this worker then ends with success."""
    why = "SIGUSR1 is passed on and ends nothing: what the workers make of it counts"
    assert ran.codes == [ran.expected(torchrun=1, node_agent=0, why=why)]


def _fail_on_the_second_node(world: World, commands: list[Command]) -> None:
    """The worker of node 1 fails; that of node 0 does too, unless it was ended before."""
    world.mailbox.wait("started", 2, limit_s=RUN_LIMIT_S)
    first, second = sorted(world.mailbox.started(), key=lambda worker: worker.rank)
    second.tell("exit", "7")
    commands[1].wait(RUN_LIMIT_S)
    with contextlib.suppress(ConnectionRefusedError):
        first.tell("exit", "3")


@scenario(
    "--nnodes 2 --master-addr 127.0.0.1 --master-port @port tell.py obey",
    nodes=("--node-rank 0", "--node-rank 1"),
    drive=_fail_on_the_second_node,
)
def failure_of_another_node(ran: Ran) -> None:
    """A node whose own workers are well hears of a failure elsewhere."""
    here, there = (root_cause(replace(ran, nodes=[node])) for node in ran.nodes)

    assert ran.codes == [1, 1]
    assert (there["rank"], there["exitcode"]) == (
        "1 (local_rank: 0)",
        f"7 (pid: {ran.told[1].pid})",
    )
    assert (here == there) == ran.expected(
        torchrun=False,
        node_agent=True,
        why="torchrun's node 0 runs on and reports its own failure; here the first failure of the "
        "job ends the round everywhere, and is in every report",
    )


def _fail_twice(world: World, commands: list[Command]) -> None:
    """Rank 0 fails in the first round, rank 1, so another node's, in the second."""
    for round, culprit in enumerate((0, 1)):
        world.mailbox.wait("started", 2 * round + 2, limit_s=RUN_LIMIT_S)
        workers = sorted(world.mailbox.started()[2 * round :], key=lambda worker: worker.rank)
        workers[culprit].tell("exit", "3")
    if commands[0].name.startswith(Launcher.TORCHRUN.value):
        world.mailbox.wait("started", 6, limit_s=RUN_LIMIT_S)
        for worker in world.mailbox.started()[4:]:
            worker.tell("exit", "0")


@scenario(
    "--nnodes 2 --max-restarts 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:@port "
    "--rdzv-id frugal tell.py obey",
    nodes=("", ""),
    drive=_fail_twice,
)
def restarts_of_the_job(ran: Ran) -> None:
    """Two failures of two nodes are more than one restart."""
    why = "restarts are counted for the job; torchrun counts them for each node"

    assert ran.codes == ran.expected(torchrun=[0, 0], node_agent=[1, 1], why=why)
    assert len(ran.told) == ran.expected(torchrun=6, node_agent=4, why=why)


@scenario("--event-log-handler console --nproc-per-node 2 tell.py sync 1/obey 0/exit=3")
def events(ran: Ran) -> None:
    """torchrun's events as JSON lines, for a collector."""
    marker = '{"name": "torchelastic.worker.status.'
    found = [json.loads(line) for line in ran.err.splitlines() if line.startswith(marker)]
    kinds = [
        (event["name"].removeprefix(marker[10:]), event["source"], event["metadata"]["global_rank"])
        for event in found
    ]
    failed = next(event["metadata"] for event in found if event["name"].endswith("FAILED"))
    details = json.loads(failed["metadata"])

    assert ran.codes == [1]
    assert kinds == [
        ("RENDEZVOUS", "AGENT", None),
        *ran.expected(
            torchrun=[("ASSIGN_WORKER_RANKS", "AGENT", None)],
            node_agent=[],
            why="ranks come with the round: nothing is assigned after it",
        ),
        ("START", "WORKER", 0),
        ("START", "WORKER", 1),
        ("FAILED", "WORKER", 0),
        (ran.expected(torchrun="FAILED", node_agent="TERMINATED", why=STOPPED), "WORKER", 1),
        ("SUCCEEDED", "AGENT", None),
    ]
    assert failed.keys() == found[0]["metadata"].keys()
    assert (failed["role"], failed["state"], failed["agent_restarts"]) == ("default", "FAILED", 0)
    assert failed["worker_id"] == str(ran.told[0].pid)
    assert details["exit_code"] == [3]
    assert details["worker_pid"] == [ran.told[0].pid]
    assert json.loads(failed["raw_error"])["message"] == "<NONE>"


def _leave_a_daemon(world: World, commands: list[Command]) -> None:
    """The worker starts a process in a separate session, and exits with 0."""
    world.mailbox.wait("started", limit_s=RUN_LIMIT_S)
    (worker,) = world.mailbox.started()
    worker.tell("spawn")
    (daemon,) = world.mailbox.wait("grandchild")
    worker.tell("exit", "0")
    commands[0].wait(RUN_LIMIT_S)
    if daemon.pid in world.marked():
        (world.folder / "survived").touch()
        world.kill(daemon.pid)


@scenario("tell.py obey", drive=_leave_a_daemon)
def daemon_of_a_worker(ran: Ran) -> None:
    """What a worker has started and left behind."""
    assert ran.codes == [0]
    assert (ran.folder / "survived").exists() == ran.expected(
        torchrun=True, node_agent=False, why="nothing that a worker has started outlives its round"
    )
