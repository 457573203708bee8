"""The life of an agent in Node.js beside a Python agent, from its first round to its last."""

from __future__ import annotations

import shlex
import sys

import pytest

from rallypoint.v1 import job_pb2, node_pb2, round_pb2
from support.languages.nodejs_client import Client
from support.processes.jobs import pids
from support.processes.world import NEW, OBEDIENT, WORKERS, World

PASS_A_BARRIER = shlex.join([sys.executable, str(WORKERS / "meeting.py")])
COMMAND = ("sh", "-c", f"{PASS_A_BARRIER} && exec {shlex.join([sys.executable, OBEDIENT])}")
"""A worker that meets all others at a barrier, with its token, before it obeys the test."""


def await_round(world: World, after: int, nodes: int) -> job_pb2.Job:
    """Wait until all workers of a later round of so many nodes run."""

    def is_wanted(job: job_pb2.Job) -> bool:
        header, states = job.round.header, {node.state for node in job.nodes if not node.spare}
        is_new = header.number > after and header.group_world_size == nodes
        return is_new and states == {node_pb2.NODE_STATE_STARTED}

    return world.jobs.wait(world.job_id, is_wanted)


@pytest.mark.long
@pytest.mark.usefixtures("forgetful")
def test_life(world: World, client: Client) -> None:
    """It meets Python workers, fails, restarts, outlives its coordinator, is drained, finishes."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    python = world.agent("a", "--max-restarts=1", nnodes="2:3", script=("--no-python", *COMMAND))
    agents = {
        name: client.join(world, name, nnodes="2:3", command=COMMAND, spec={"maxRestarts": 1})
        for name in ("b", "c")
    }

    python.wait_event("coordinator_reached")
    first = await_round(world, 0, nodes=3).round.header
    workers = world.mailbox.workers(3, round=first.number)  # after the barrier
    assert [(worker.rank, worker.env["WORLD_SIZE"]) for worker in workers] == [
        (rank, "3") for rank in range(3)
    ]

    next(worker for worker in workers if worker.node == "b").tell("exit", "7")
    restarted = await_round(world, first.number, nodes=3)
    workers = world.mailbox.workers(3, round=restarted.round.header.number)
    culprit = restarted.verdict.culprit
    assert (culprit.node_name, culprit.exit.exit_code) == ("b", 7)
    assert {worker.restart_count for worker in workers} == {1}

    coordinator.kill()
    agents["b"].wait_text("agent: no coordinator")
    world.coordinator(port)
    python.wait_event("coordinator_reached_again")
    adopted = await_round(world, first.number, nodes=3)
    assert adopted.round.header == restarted.round.header
    assert pids(adopted) == pids(restarted)

    assert client.operate(world, "drain", world.job_id, "b", "60s", "new kernel").returncode == 0
    agents["b"].wait_text("agent: drains within")
    next(worker for worker in workers if worker.node == "b").tell("exit", "0")
    assert agents["b"].wait() == 0
    last = await_round(world, restarted.round.header.number, nodes=2)
    assert last.round.header.reason == round_pb2.ROUND_REASON_DRAINED

    for worker in world.mailbox.workers(2, round=last.round.header.number):
        worker.tell("exit", "0")
    assert [python.wait(), agents["c"].wait()] == [0, 0]
