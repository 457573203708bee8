"""Jobs as users start them: the journal, the lease and every policy have their defaults.

Other tests turn off what makes a job wait, so they would not notice a default that does harm.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.v1 import job_pb2, round_pb2
from support.processes.commands import NODE_AGENT, SCRIPTS, Command
from support.processes.jobs import is_started, pids
from support.processes.mailbox import Worker
from support.processes.world import OBEDIENT, World

OPERATOR = str(SCRIPTS / "rallypoint")
BARRIER = """
import os
from rallypoint import worker
worker.barrier("loaded", timeout_s=100)
print("passed", os.environ["RANK"], flush=True)
"""


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[World]:
    """A world whose coordinator and agents have no flags but addresses, names and sizes."""
    with World(tmp_path, "localhost:1") as world:
        world.is_plain = True
        yield world


@pytest.fixture
def coordinator(plain: World) -> Command:
    return plain.coordinator(plain.ports.reserve())


def start_pair(world: World, *flags: str, nnodes: str = "2") -> tuple[Command, Command]:
    """Return two agents whose workers run in the first round."""
    pair = world.agent("a", *flags, nnodes=nnodes), world.agent("b", *flags, nnodes=nnodes)
    world.mailbox.workers(2)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    return pair


def end(workers: list[Worker], *agents: Command) -> None:
    """Let workers succeed, and their agents with them."""
    for worker in workers:
        worker.tell("exit", "0")
    assert [0] * len(agents) == [agent.wait() for agent in agents]


def reason_of(world: World, number: int) -> round_pb2.RoundReason.ValueType:
    """Return why a round began, once its workers run."""
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, number))
    return job.round.header.reason


def test_failed_worker(plain: World, coordinator: Command) -> None:
    """Two nodes meet; a worker fails, all start again, and the verdict names it afterwards."""
    agents = start_pair(plain, "--max-restarts=1")
    plain.mailbox.workers(2)[1].tell("exit", "7")
    workers = plain.mailbox.workers(2, round=2)
    end(workers, *agents)

    asked = plain.run(OPERATOR, "verdict", plain.job_id, "-c", plain.target)
    assert asked.returncode == 0, asked.stderr
    assert "rank 1, local rank 0" in asked.stdout
    assert [1, 1] == [worker.restart_count for worker in workers]


def test_node_that_is_lost(plain: World, coordinator: Command) -> None:
    """The other continues without it; its restart is not charged."""
    stays, goes = start_pair(plain, nnodes="1:2")
    goes.signal(signal.SIGKILL)
    (last,) = plain.mailbox.workers(1, round=2)

    assert round_pb2.ROUND_REASON_NODE_LOST == reason_of(plain, 2)
    assert (last.node, last.restart_count) == ("a", 0)
    end([last], stays)


def test_job_grows(plain: World, coordinator: Command) -> None:
    """A node that comes later takes part as soon as the round is old enough."""
    first = plain.agent("a", nnodes="1:2")
    plain.mailbox.workers(1)
    second = plain.agent("b", nnodes="1:2")
    workers = plain.mailbox.workers(2, round=2)

    assert round_pb2.ROUND_REASON_GROWTH == reason_of(plain, 2)
    end(workers, first, second)


def test_node_that_drains(plain: World, coordinator: Command) -> None:
    """An agent that gets SIGTERM takes its node out; the other continues."""
    stays, goes = start_pair(plain, nnodes="1:2")
    goes.signal(signal.SIGTERM)
    assert 128 + signal.SIGTERM == goes.wait()
    (last,) = plain.mailbox.workers(1, round=2)

    assert round_pb2.ROUND_REASON_NODE_LEFT == reason_of(plain, 2)
    end([last], stays)


def test_coordinator_that_is_killed(plain: World, coordinator: Command) -> None:
    """It is started again in the same way, and knows the job; no worker notices."""
    agents = start_pair(plain)
    before = pids(plain.jobs.get(plain.job_id))
    coordinator.kill()
    plain.coordinator(int(plain.target.rpartition(":")[2]))
    for agent in agents:
        agent.wait_event("coordinator_reached_again")

    job = plain.jobs.get(plain.job_id)
    assert (1, before) == (job.round.header.number, pids(job))
    end(plain.mailbox.workers(2), *agents)


def test_job_that_is_cancelled(plain: World, coordinator: Command) -> None:
    """All of it ends, and the command waits for that."""
    agents = start_pair(plain)
    done = plain.run(OPERATOR, "cancel", plain.job_id, "-c", plain.target, "--wait")

    assert done.returncode == 0, done.stderr
    assert [94, 94] == [agent.wait() for agent in agents]
    assert job_pb2.OUTCOME_CANCELLED == plain.jobs.get(plain.job_id).outcome


def test_coordinator_that_a_node_hosts(plain: World) -> None:
    """Nothing is started but the agents, each with the same command."""
    port = plain.ports.reserve()
    command = [NODE_AGENT, "--nnodes=2", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=hosted"]
    agents = [
        plain.start(f"agent {name}", [*command, f"--node-name={name}", OBEDIENT]) for name in "ab"
    ]
    end(plain.mailbox.workers(2), *agents)

    asked = plain.run(OPERATOR, "status", "hosted", "-c", f"localhost:{port}")
    assert "succeeded" in asked.stdout, asked.stderr


def test_barrier(plain: World, coordinator: Command) -> None:
    """Workers of two nodes wait for each other."""
    script = plain.folder / "meet.py"
    script.write_text(BARRIER)
    agents = [plain.agent(name, nnodes="2", script=(str(script),)) for name in ("a", "b")]

    assert [0, 0] == [agent.wait() for agent in agents]
    printed = " ".join(agent.stdout() for agent in agents)
    assert "passed 0" in printed and "passed 1" in printed
