"""Workers that meet and share keys while the owner of their job dies, freezes and hands over."""

from __future__ import annotations

import signal

import pytest

from rallypoint.client import Client, Scope
from support.etcd.coordinators import Coordinators
from support.processes.room import Room, start, wait_arrived
from support.processes.world import World

SIZE = 3


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_workers_notice_nothing_but_a_pause(
    world: World, on_one: Coordinators, end: signal.Signals
) -> None:
    """Whether it is dead, frozen or ends: barriers, waits, watches and progress continue."""
    world.patience = ()  # an agent leaves a frozen coordinator after a lease
    on_one.start_many(SIZE)
    agents, workers = start(world)
    room = Room(world, workers)
    assert ["ok"] * 4 == room.ask("loop", "3")
    owner = on_one.owner()
    given = workers[0].env["RALLYPOINT_COORDINATOR"].split(",")
    assert sorted(seat.address for seat in on_one.seats) == sorted(given)

    token = workers[0].env["RALLYPOINT_WORKER_TOKEN"]
    with Client(world.target, token=token) as client:
        with client.watch_keys(world.job_id, scope=Scope.RUN) as watch:
            room.tell("barrier", "met", "100", ranks=[0, 1])
            wait_arrived(world, "met", 2)
            room.tell("get", "late", "100", ranks=[2])
            owner.command.signal(end)
            room.ask("put", "late", "here", ranks=[3])
            assert ["here"] == room.answers([2])
            room.tell("barrier", "met", "100", ranks=[2, 3])
            assert ["ok"] * 4 == room.answers()
            assert ["ok"] * 4 == room.ask("loop", "3")
            assert ["ok"] * 4 == room.ask("progress", "7")
            assert ("late", b"here") == ((event := next(watch)).kv.key, event.kv.value)
        reached = [agent.wait_event("coordinator_reached_again") for agent in agents]
        job = client.get_job(world.job_id).job

    assert 1 == job.round.header.number
    assert owner.address not in {event["coordinator"] for event in reached}
    for worker in workers:
        worker.tell("exit", "0")
    assert [0, 0] == [agent.wait() for agent in agents]
