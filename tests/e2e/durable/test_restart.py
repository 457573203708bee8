"""A coordinator that is killed and started again continues: with the same job, round and counts."""

from __future__ import annotations

from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import event_service_pb2_grpc as events_grpc
from rallypoint.v1 import job_pb2
from support.processes.feed import LIMIT_S
from support.processes.jobs import is_started, pids
from support.processes.world import NEW, World


def event_numbers(world: World) -> list[int]:
    stub = events_grpc.EventServiceStub(world.jobs.channel)
    request = events_pb2.ListEventsRequest(job_id=world.job_id)
    return [event.sequence for event in stub.ListEvents(request, timeout=LIMIT_S).events]


def test_killed_coordinator_continues(world: World) -> None:
    """Round, restart count, events and pids stay; the next failure is counted on top."""
    port = world.ports.reserve()
    flags = (f"--state=sqlite:{world.folder / 'journal.sqlite'}", *NEW)
    coordinator = world.coordinator(port, *flags)
    agents = [world.agent(name, "--max-restarts=3", nnodes="2", nproc=2) for name in ("a", "b")]
    world.mailbox.workers(4)[1].kill()
    workers = world.mailbox.workers(4, round=2)
    before = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))
    numbers = event_numbers(world)

    for life in range(1, 3):
        coordinator.kill()
        coordinator = world.coordinator(port, *flags)
        assert 1 == coordinator.wait_event("journal_loaded")["jobs"]
        for agent in agents:
            agent.wait_event("coordinator_reached_again", count=life)
        after = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))
        assert (before.round.header.number, 1) == (after.round.header.number, after.restart_count)
        assert job_pb2.JOB_PHASE_RUNNING == after.phase
        assert pids(before) == pids(after) == [worker.pid for worker in workers]
        assert numbers == event_numbers(world)[: len(numbers)]
    assert 8 == len(world.mailbox.started())

    workers[3].kill()
    last = world.mailbox.workers(4, round=3)
    assert [2] * 4 == [worker.restart_count for worker in last]
    for worker in last:
        worker.tell("exit", "0")
    assert [0, 0] == [agent.wait() for agent in agents]
