"""Workers that meet and share keys while the owner of their job dies, freezes and hands over."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.client import Client, Scope
from support.etcd.cluster import running
from support.processes.commands import COORDINATOR, Command
from support.processes.room import Room, start, wait_arrived
from support.processes.world import World

pytestmark = pytest.mark.long
SIZE = 3


@pytest.fixture
def owners(world: World, tmp_path: Path) -> Iterator[dict[str, Command]]:
    """Coordinators that share a store, by address. Agents are given all of them."""
    with running(tmp_path / "etcd") as etcd:
        (endpoint,) = etcd.endpoints
        state = f"--state=etcd://{endpoint}/rallypoint"
        argv = [COORDINATOR, "--host=127.0.0.1", "--port=0", "--shards=4", state]
        started = [world.start(f"coordinator {number}", argv) for number in range(SIZE)]
        by_address = {one.stdout_line().removeprefix("listening on "): one for one in started}
        world.target = ",".join(by_address)
        world.patience = ()
        yield by_address
        for one in started:
            one.kill()


def owner_of(agent: Command) -> str:
    """Return the coordinator that has welcomed an agent last."""
    event = agent.events("coordinator_reached", "coordinator_reached_again")[-1]
    return str(event["coordinator"])


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_workers_notice_nothing_but_a_pause(
    world: World, owners: dict[str, Command], end: signal.Signals
) -> None:
    """Whether it is dead, frozen or ends: barriers, waits, watches and progress continue."""
    agents, workers = start(world)
    room = Room(world, workers)
    given = workers[0].env["RALLYPOINT_COORDINATOR"].split(",")
    assert {*owners} == {*given}
    assert ["ok"] * 4 == room.ask("loop", "3")
    owner = owner_of(agents[0])
    assert owner == given[0]

    token = workers[0].env["RALLYPOINT_WORKER_TOKEN"]
    with Client(world.target, token=token) as client:
        with client.watch_keys(world.job_id, scope=Scope.RUN) as watch:
            room.tell("barrier", "met", "100", ranks=[0, 1])
            wait_arrived(world, "met", 2)
            room.tell("get", "late", "100", ranks=[2])
            owners[owner].signal(end)
            room.ask("put", "late", "here", ranks=[3])
            assert ["here"] == room.answers([2])
            room.tell("barrier", "met", "100", ranks=[2, 3])
            assert ["ok"] * 4 == room.answers()
            assert ["ok"] * 4 == room.ask("loop", "3")
            assert ["ok"] * 4 == room.ask("progress", "7")
            assert ("late", b"here") == ((event := next(watch)).kv.key, event.kv.value)
        for agent in agents:
            agent.wait_event("coordinator_reached_again")
        job = client.get_job(world.job_id).job

    assert 1 == job.round.header.number
    assert owner != owner_of(agents[0])
    for worker in workers:
        worker.tell("exit", "0")
    assert [0, 0] == [agent.wait() for agent in agents]
