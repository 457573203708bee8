"""Nodes that are drained: what their workers and the other workers learn, and when."""

import json
import signal
from pathlib import Path

from rallypoint.v1 import job_pb2, round_pb2
from support.processes.commands import Command
from support.processes.jobs import is_started
from support.processes.mailbox import Worker
from support.processes.world import NEW, World

PATIENT = ("--drain-timeout=60", "--drain-signal=USR1")


def notices(worker: Worker) -> list[dict[str, object]]:
    """Return the content of a worker's notice file."""
    path = Path(worker.env["RALLYPOINT_NOTICE_FILE"])
    found: list[dict[str, object]] = json.loads(path.read_text()) if path.exists() else []
    return found


def teach(world: World, worker: Worker, **handling: str) -> None:
    for name, manner in handling.items():
        worker.tell(name, manner)
    world.mailbox.wait("ready", len(handling), pid=worker.pid)


def drains(job: job_pb2.Job) -> bool:
    return job.waiting.kind == job_pb2.WAIT_KIND_DRAIN


def pair(world: World, *flags: str) -> tuple[Command, Command, list[Worker]]:
    """Return two agents whose round 2 runs on both nodes, and its two workers."""
    a = world.agent("a", *flags, nnodes="1:2")
    world.mailbox.workers(1)
    b = world.agent("b", *flags, nnodes="1:2")
    return a, b, world.mailbox.workers(2, round=2)


def test_node_drains(world: World) -> None:
    """Its workers get the drain signal, all others a notice; the round after it is not charged."""
    stays, leaves, (stayer, leaver) = pair(world, *PATIENT)
    teach(world, leaver, USR1="ignore")
    assert [notices(stayer), notices(leaver)] == [[], []]

    leaves.signal(signal.SIGTERM)
    world.mailbox.wait("signalled", 1, pid=leaver.pid)
    job = world.jobs.wait(world.job_id, drains)

    (notice,) = job.notices
    assert (notice.kind, notice.node_name) == (job_pb2.NOTICE_KIND_DRAIN, "b")
    assert 0 < notice.time_left.seconds <= 60
    assert "b (draining: received SIGTERM)" in job.waiting.text
    assert stays.wait_event("notice_received")["node"] == "b"
    for worker in (stayer, leaver):
        (found,) = notices(worker)
        assert (found["kind"], found["node"]) == ("drain", "b")
        assert found["here"] == (worker is leaver)

    leaver.tell("exit", "0")
    assert leaves.wait() == 128 + signal.SIGTERM
    (last,) = world.mailbox.workers(1, round=3)
    assert (last.node, last.restart_count, notices(last)) == ("a", 0, [])
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 3))
    assert job.round.header.reason == round_pb2.ROUND_REASON_DRAINED
    last.tell("exit", "0")
    assert stays.wait() == 0


def test_drain_of_a_failed_coordinator(world: World) -> None:
    """A new coordinator learns from the agent that its node drains."""
    port = world.ports.reserve()
    first = world.coordinator(port, *NEW)
    stays, leaves, (_, leaver) = pair(world, *PATIENT)
    teach(world, leaver, USR1="ignore")
    leaves.signal(signal.SIGTERM)
    world.jobs.wait(world.job_id, drains)

    first.kill()
    world.coordinator(port)
    stays.wait_event("coordinator_reached_again")
    job = world.jobs.wait(world.job_id, drains)

    assert [notice.node_name for notice in job.notices] == ["b"]
    leaver.tell("exit", "0")
    (last,) = world.mailbox.workers(1, round=3)
    assert last.node == "a"
