"""How a failure is reported: on the terminal, to the scheduler, and as events."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent.torchelastic.root_cause import exit_number
from support.processes.commands import Command
from support.processes.world import WORKERS, World

TORCH_EVENTS = str(Path(__file__).parents[2] / "support" / "torchrun" / "torch_events.py")
READ_BY_TORCH = """\
import sys
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
failure = ProcessFailure(local_rank=0, pid=1, exitcode=7, error_file=sys.argv[1])
print(failure.message["message"], failure.timestamp, sep=", ", end="")
"""
"""What a torchrun around the agent would do with its error file."""


def read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def recorded(agent: Command) -> list[dict[str, Any]]:
    """Return the recorded events."""
    return [json.loads(line) for line in agent.said() if line.startswith('{"name"')]


def test_root_cause_of_torchs_record(world: World) -> None:
    """The error of @record is in the report and, with its exit code, in the agent's error file."""
    mine = world.folder / "mine.json"
    env = {"TORCHELASTIC_ERROR_FILE": str(mine)}
    agent = world.agent("a", script=[str(WORKERS / "recorded.py")], env=env)

    assert agent.wait() == 1
    report = agent.said()[agent.said().index("Root Cause (first observed failure):") :]
    (named,) = [line.removeprefix("  error_file: ") for line in report if "error_file" in line]
    written, found = read(Path(named)), read(mine)
    message = written["message"]
    extra = message["extraInfo"]
    exit = world.jobs.get(world.job_id).verdict.culprit.exit
    assert named == exit.error_file != str(mine)
    # Under load torch takes seconds to end, and our signal comes first.
    assert found["message"] == {**message, "errorCode": exit_number(exit)}
    assert found["rallypoint"]["node"] == "a"
    assert (exit.failed_at.seconds, exit.failed_at.nanos) == (int(extra["timestamp"]), 0)
    stack = extra["py_callstack"].rstrip().splitlines()
    at = report.index(f"  traceback : {stack[0]}")
    assert report[at + 1 : at + len(stack)] == [f"  {line}" for line in stack[1:]]


@pytest.mark.parametrize("choice", ["-t3", "-r2"])
def test_report_names_the_file_of_standard_error(world: World, choice: str) -> None:
    """Every node finds the rest of the output there; without a file there is no such line."""
    logs = world.folder / "logs"
    agents = [
        world.agent("a", nnodes="2"),
        world.agent("b", choice, f"--log-dir={logs}", nnodes="2"),
    ]
    workers = world.mailbox.workers(2)
    on_b = next(worker for worker in workers if worker.node == "b")
    on_b.tell("say", "loss is nan")
    on_b.tell("exit", "3")

    assert [agent.wait() for agent in agents] == [1, 1]
    (path,) = logs.glob("*/attempt_0/0/stderr.log")
    assert path.read_text() == "loss is nan\n"
    for agent in agents:
        assert f"  log       : {path}" in agent.said()


def test_every_agent_tells_its_scheduler_the_same(world: World) -> None:
    """The root cause goes to the scheduler of every node; workers have their own error files."""
    files = [world.folder / f"{name}.json" for name in "ab"]
    agents = [
        world.agent(name, nnodes="2", env={"TORCHELASTIC_ERROR_FILE": str(path)})
        for name, path in zip("ab", files, strict=True)
    ]
    workers = world.mailbox.workers(2)
    workers[1].tell("record", "out of apples")
    workers[1].tell("exit", "7")

    assert [agent.wait() for agent in agents] == [1, 1]
    told = [read(path) for path in files]
    own = {worker.env["TORCHELASTIC_ERROR_FILE"] for worker in workers}
    assert len(own) == 2 and own.isdisjoint(map(str, files))
    assert [found["message"]["message"] for found in told] == ["out of apples"] * 2
    assert [found["message"]["errorCode"] for found in told] == [7, 7]
    assert told[0]["rallypoint"] == told[1]["rallypoint"]
    assert told[0]["rallypoint"]["rank"] == 1
    assert int(told[0]["message"]["extraInfo"]["timestamp"]) > 0  # its own had none
    assert "  host      : <N/A>" not in agents[0].said()
    read_by_torch = world.run(sys.executable, "-c", READ_BY_TORCH, str(files[0]))
    assert read_by_torch.stdout == f"out of apples, {told[0]['message']['extraInfo']['timestamp']}"


def test_scheduler_is_told_why_an_agent_ends(world: World) -> None:
    """An agent that ends for its own reason writes that to the same file."""
    mine = world.folder / "mine.json"
    agent = world.agent("a", env={"TORCHELASTIC_ERROR_FILE": str(mine)})
    world.mailbox.workers(1)
    agent.signal(signal.SIGTERM)

    assert agent.wait() == 128 + signal.SIGTERM
    assert read(mine)["message"]["message"] == "node-agent: received SIGTERM"
    assert read(mine)["message"]["errorCode"] == 143


@pytest.mark.parametrize("code", ["0", "75", "93"])
def test_exit_codes_of_workers_are_not_the_agents(world: World, code: str) -> None:
    """A failed job exits with 1, whatever the code of its worker."""
    agent = world.agent("a")
    (worker,) = world.mailbox.workers(1)
    worker.tell("exit", code)

    assert agent.wait() == (1 if int(code) else 0)
    assert not (world.folder / "mine.json").exists()


def test_join_timeout_holds_for_the_coordinator_too(world: World) -> None:
    """Without another limit, the wait for a coordinator ends after the join timeout."""
    world.target = f"127.0.0.1:{world.ports.reserve()}"
    mine = world.folder / "mine.json"
    env = {"TORCHELASTIC_ERROR_FILE": str(mine)}
    agent = world.agent("a", "--join-timeout=1", env=env)

    assert agent.wait() == 75
    why = f"no coordinator answered for 1 s ({world.target})"
    port = world.target.rpartition(":")[2]
    assert agent.said() == [
        f"node-agent: {why}; start one there: rallypoint coordinator --port {port}"
    ]
    assert read(mine)["message"]["message"] == agent.said()[0]


def test_exit_code_that_forbids_another_try(world: World) -> None:
    """Only a listed exit code makes the agent exit with 93."""
    agent = world.agent("a", "--no-requeue-exit-codes=75", "--max-restarts=3")
    (worker,) = world.mailbox.workers(1)
    worker.tell("exit", "75")

    assert agent.wait() == 93


def test_worker_that_was_stopped_is_no_failure(world: World) -> None:
    """A worker that the agent stopped is reported as stopped, whatever its code."""
    agent = world.agent("a", nproc=3)
    workers = world.mailbox.workers(3)
    workers[0].tell("TERM", "mute")
    world.mailbox.wait("ready", pid=workers[0].pid)
    workers[1].tell("exit", "4")

    assert agent.wait() == 1
    assert "  <NO_OTHER_FAILURES>" in agent.said()
    assert "  stopped by the agent, not failed: ranks 0,2" in agent.said()
    assert agent.said().count(f"  exitcode  : 4 (pid: {workers[1].pid})") == 1


def test_equal_tracebacks_are_told_once(world: World) -> None:
    """Eight workers that fail at the same import: one traceback, eight places."""
    script = world.folder / "broken.py"
    script.write_text("import no_such_module_anywhere\n")
    agent = world.agent("a", nproc=8, script=[str(script)])

    assert agent.wait() == 1
    *report, last = agent.said()[agent.said().index(f"{script} FAILED") :]
    assert "ModuleNotFoundError" in last
    assert sum("ModuleNotFoundError" in line for line in report) == 1
    failed = [line.split()[2] for line in report if line.startswith("  rank      :")]
    alike = [line for line in report if line.endswith(": the same error as the root cause")]
    failed += [str(rank) for line in alike for rank in expand(line.split()[1].rstrip(":"))]
    stopped = [line.split()[-1] for line in report if line.startswith("  stopped by the agent")]
    # One that was slow to start was stopped before it could fail.
    assert sorted(map(int, failed)) == sorted(set(range(8)) - set(expand(*stopped)))
    assert all(len(line) <= 100 for line in report if str(script) not in line)


def expand(ranks: str = "") -> list[int]:
    """Return the ranks in a text such as "0-2,7"."""
    spans = [span.split("-") for span in ranks.split(",") if span]
    return [rank for span in spans for rank in range(int(span[0]), int(span[-1]) + 1)]


def test_events_are_those_of_torch(world: World) -> None:
    """--event-log-handler console writes torch's events, field by field, in order."""
    agent = world.agent("a", "--event-log-handler=console", "--max-restarts=1", nproc=2)
    for round in (1, 2):
        workers = world.mailbox.workers(2, round=round)
        workers[1].tell("record", "out of apples")
        workers[1].tell("exit", "5")

    assert agent.wait() == 1
    events = recorded(agent)
    assert [(event["source"], event["metadata"]["state"]) for event in events] == [
        ("AGENT", "RENDEZVOUS"),
        ("WORKER", "START"),
        ("WORKER", "START"),
        ("AGENT", "RENDEZVOUS"),
        ("WORKER", "START"),
        ("WORKER", "START"),
        ("WORKER", "TERMINATED"),
        ("WORKER", "FAILED"),
        ("AGENT", "SUCCEEDED"),
    ]
    failed = events[-2]
    assert failed["name"] == "torchelastic.worker.status.FAILED"
    assert failed["metadata"]["worker_id"] == str(workers[1].pid)
    assert failed["metadata"]["agent_restarts"] == 1
    assert json.loads(failed["metadata"]["raw_error"])["message"]["message"] == "out of apples"
    more = json.loads(failed["metadata"]["metadata"])
    assert (more["exit_code"], more["worker_pid"]) == ([5], [workers[1].pid])
    theirs = [
        json.loads(line) for line in world.run(sys.executable, TORCH_EVENTS).stdout.splitlines()
    ]
    assert [shape(event) for event in (events[-1], failed)] == [shape(event) for event in theirs]


def shape(event: dict[str, Any]) -> list[object]:
    """Return the names of an event's fields, at every level, and whether they are lists."""
    metadata = event["metadata"]
    more = json.loads(metadata["metadata"])
    lists = [name for name, value in more.items() if isinstance(value, list)]
    return [list(event), list(metadata), sorted(more), sorted(lists)]
