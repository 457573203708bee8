"""The agent in Node.js (examples/clients/node), beside Python agents."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path

import pytest

from rallypoint.v1 import round_pb2
from support.languages.nodejs_client import Client
from support.processes.jobs import is_started, pids
from support.processes.mailbox import Worker
from support.processes.world import OBEDIENT, WORKERS, World

MORE = pytest.mark.nightly
SHARED = ("RANK", "WORLD_SIZE", "ROLE_", "GROUP_", "LOCAL_", "MASTER_", "RALLYPOINT_")
"""Variables that agents of all languages set; and TORCHELASTIC_."""
OF_PYTHON = {"RALLYPOINT_AGENT", "RALLYPOINT_MARK_PIPE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
"""Those that only the Python agent sets: its mark, its FIFO for milestones, which an agent need not
have, and its flag --signals-to-handle."""

PASS_A_BARRIER = shlex.join([sys.executable, str(WORKERS / "meeting.py")])
MEETING = ("sh", "-c", f"{PASS_A_BARRIER} && exec {shlex.join([sys.executable, OBEDIENT])}")
"""A worker that meets all others at a barrier, with its token, before it obeys the test."""


def variables(worker: Worker) -> set[str]:
    """Return the names of the variables that any agent has to set."""
    return {name for name in worker.env if name.startswith((*SHARED, "TORCHELASTIC_"))} - OF_PYTHON


def test_joins_a_round_and_is_drained(world: World, client: Client) -> None:
    """Its workers have their ranks and the same variables as those of a Python agent, and meet them
    at a barrier with their token. An operator drains it: it exits with 0, the other continues."""
    python = world.agent("a", nnodes="1:2", nproc=2, script=("--no-python", *MEETING))
    world.mailbox.workers(2)
    nodejs = client.join(world, "b", nnodes="1:2", nproc=2, command=MEETING)
    workers = world.mailbox.workers(4, round=2)  # after the barrier
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))

    assert [worker.rank for worker in workers] == [0, 1, 2, 3]
    by_node = {name: [one for one in workers if one.node == name] for name in ("a", "b")}
    assert [one.env["LOCAL_RANK"] for one in by_node["b"]] == ["0", "1"]
    assert variables(by_node["b"][0]) == variables(by_node["a"][0])
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RALLYPOINT_WORKER_TOKEN"):
        assert len({one.env[name] for one in workers}) == 1, name
    assert pids(job) == [worker.pid for worker in workers]

    assert client.operate(world, "drain", world.job_id, "b", "60s", "new kernel").returncode == 0
    nodejs.wait_text("agent: drains within")
    for worker in by_node["b"]:
        worker.tell("exit", "0")
    assert nodejs.wait() == 0
    last = world.mailbox.workers(2, round=3)
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 3))
    assert job.round.header.reason == round_pb2.ROUND_REASON_DRAINED
    for worker in last:
        worker.tell("exit", "0")
    assert python.wait() == 0


@pytest.mark.long
def test_stop_kills_what_ignores_sigterm(world: World, client: Client) -> None:
    """After the shutdown timeout it kills all descendants, also one in a separate session."""
    agents = [
        world.agent("a", "--max-restarts=1", "--shutdown-timeout=1", nnodes="2"),
        client.join(world, "b", spec={"maxRestarts": 1, "shutdownTimeout": "1s"}),
    ]
    first = world.mailbox.workers(2)
    by_node = {worker.node: worker for worker in first}
    stubborn = by_node["b"]
    stubborn.tell("TERM", "ignore")
    world.mailbox.wait("ready", pid=stubborn.pid)
    stubborn.tell("fork")
    (child,) = world.mailbox.wait("child")
    stubborn.tell("spawn")
    (grandchild,) = world.mailbox.wait("grandchild")
    by_node["a"].tell("exit", "1")
    world.mailbox.wait("signalled", pid=stubborn.pid)
    second = world.mailbox.workers(2, round=2)

    assert {stubborn.pid, child.pid, grandchild.pid}.isdisjoint(world.marked())
    for worker in second:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]


@pytest.mark.nightly
def test_drain_ends_after_its_time(world: World, client: Client) -> None:
    """A worker that does not look for the notice is stopped when the time of the drain is over."""
    python = world.agent("a", nnodes="1:2")
    world.mailbox.workers(1)
    nodejs = client.join(world, "b", "--drain-timeout=0.5", nnodes="1:2")
    world.mailbox.workers(2, round=2)
    nodejs.signal(signal.SIGTERM)

    assert nodejs.wait() == 128 + signal.SIGTERM
    (last,) = world.mailbox.workers(1, round=3)
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 3))
    assert job.round.header.reason == round_pb2.ROUND_REASON_DRAINED
    last.tell("exit", "0")
    assert python.wait() == 0


@pytest.mark.nightly
def test_spare_is_released(world: World, client: Client) -> None:
    """A node without a place in the round leaves at once when an operator drains it."""
    python = world.agent("a", nnodes="1")
    (worker,) = world.mailbox.workers(1)
    nodejs = client.join(world, "b", nnodes="1")
    nodejs.wait_text("agent: joined as b")
    client.operate(world, "drain", world.job_id, "b", "60s", "not needed")

    assert nodejs.wait() == 0
    assert "drained: not needed" in nodejs.stderr()
    worker.tell("exit", "0")
    assert python.wait() == 0


@pytest.mark.nightly
def test_its_workers_learn_of_the_drain_of_another_node(world: World, client: Client) -> None:
    """A notice of the coordinator is in the file of the round, and gone in the next."""
    nodejs = client.join(world, "b", nnodes="1:2")
    world.mailbox.workers(1)
    python = world.agent("a", "--drain-timeout=60", nnodes="1:2")
    by_node = {worker.node: worker for worker in world.mailbox.workers(2, round=2)}
    python.signal(signal.SIGTERM)
    nodejs.wait_text("agent: notice: drain a")
    path = Path(by_node["b"].env["RALLYPOINT_NOTICE_FILE"])
    (notice,) = json.loads(path.read_text())
    assert (notice["node"], notice["here"], notice["reason"]) == ("a", False, "received SIGTERM")
    by_node["a"].tell("exit", "0")
    assert python.wait() == 128 + signal.SIGTERM
    (last,) = world.mailbox.workers(1, round=3)

    assert last.node == "b"
    assert not Path(last.env["RALLYPOINT_NOTICE_FILE"]).exists()
    last.tell("exit", "0")
    assert nodejs.wait() == 0


@pytest.mark.nightly
def test_logs_a_wait_once(world: World, client: Client) -> None:
    """Although each answer to a heartbeat has the text, with less time left."""
    spec = {"joinTimeout": "4s", "lease": "5s"}
    nodejs = client.join(world, "b", nnodes="2", spec=spec)

    assert nodejs.wait() == 1
    waits = [line for line in nodejs.said() if "required nodes are ready" in line]
    assert len(waits) == 1


@pytest.mark.parametrize(
    ("spec", "command", "exit_code", "text"),
    [
        ({"noRequeueExitCodes": [3]}, ["sh", "-c", "exit 3"], 93, "agent: the job failed: "),
        pytest.param({}, ["sh", "-c", "kill -SEGV $$"], 1, "signal 11", marks=MORE),
        pytest.param({}, ["no-such-program"], 1, "no-such-program: ENOENT", marks=MORE),
        pytest.param({"minNodes": 0}, ["true"], 2, "min_nodes", marks=MORE),
        pytest.param({"fenceAfter": "1s"}, ["true"], 2, "fence_after", marks=MORE),
    ],
)
def test_exit_code(
    world: World,
    client: Client,
    spec: dict[str, object],
    command: list[str],
    exit_code: int,
    text: str,
) -> None:
    """It exits with the code of the outcome or refusal, and prints why."""
    nodejs = client.join(world, "b", nnodes="1", command=command, spec=spec)

    assert nodejs.wait() == exit_code
    assert text in nodejs.stderr()


def test_disagreement_ends_it(world: World, client: Client) -> None:
    """A typed refusal that another attempt cannot change ends it with 2."""
    python = world.agent("a", nnodes="1")
    (worker,) = world.mailbox.workers(1)
    nodejs = client.join(world, "b", nnodes="1", spec={"maxRestarts": 5})

    assert nodejs.wait() == 2
    assert "--max-restarts is 0 there and 5 here" in nodejs.stderr()
    worker.tell("exit", "0")
    assert python.wait() == 0
