"""`rallypoint.worker` in real workers, and the client beside them, over failures of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rallypoint.client import AsyncClient, Scope
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import job_pb2
from rallypoint.v1.barrier_service_pb2 import Participant
from rallypoint.wire.durations import to_ms
from support.machines.proxy import Proxy
from support.processes.commands import Command
from support.processes.jobs import is_started
from support.processes.room import Room, client_of, start, wait_arrived
from support.processes.world import NEW, World


def test_workers_share(world: World) -> None:
    """Barriers in a loop, payloads by rank, and keys for which others wait."""
    _, workers = start(world)
    room = Room(world, workers)

    assert ["ok"] * 4 == room.ask("loop", "20")
    for worker in workers:
        room.tell("gather", f"from {worker.rank}", ranks=[worker.rank])
    assert [[f"from {rank}" for rank in range(4)]] * 4 == room.answers()
    room.tell("get", "address", "60", ranks=[1, 2, 3])
    room.ask("put", "address", "10.0.0.7", ranks=[0])
    assert ["10.0.0.7"] * 3 == room.answers([1, 2, 3])
    assert [False] * 4 == room.ask("agree")
    with client_of(world, workers[0]) as client:
        keys = client.list_keys(world.job_id, scope=Scope.RUN)
        assert [("address", b"10.0.0.7")] == [(kv.key, kv.value) for kv in keys]
        assert ["a", "b"] == sorted(node.name for node in client.list_nodes(world.job_id))
        assert world.job_id in {job.job_id for job in client.list_jobs()}


def test_error_names_who_is_missing_and_who_was_lost(world: World) -> None:
    """After the timeout, and at once when a worker fails."""
    _, workers = start(world, "--max-restarts=1")
    room = Room(world, workers)
    room.tell("barrier", "early", "0.5", ranks=[0, 2])
    overdue = room.fields([0, 2])
    assert ["BarrierBroken"] * 2 == [one["error"] for one in overdue]
    assert [[[1, 3], []]] * 2 == [one["ranks"] for one in overdue]
    room.tell("barrier", "late", "100", ranks=[0, 1, 2])
    wait_arrived(world, "late", 3)
    workers[3].tell("exit", "7")
    lost = room.fields([0, 1, 2])

    assert [[[3], [3]]] * 3 == [one["ranks"] for one in lost]
    assert all("rank 3 on node b failed: exit code 7" in one["text"] for one in lost)


def restart(world: World, coordinator: Command, port: int, agents: Sequence[Command]) -> None:
    """Kill the coordinator, and start one without its memory."""
    coordinator.kill()
    world.coordinator(port)
    for agent in agents:
        agent.wait_event("coordinator_reached_again")


@pytest.mark.usefixtures("forgetful")
def test_worker_is_told_what_a_new_coordinator_has_forgotten(world: World) -> None:
    """Who waited learns that it is unknown who had arrived. Who calls during the outage waits."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    agents, workers = start(world)
    room = Room(world, workers)
    assert ["ok"] * 4 == room.ask("loop", "1")
    room.tell("barrier", "before", "100", ranks=[0, 1])
    wait_arrived(world, "before", 2)
    coordinator.kill()
    room.tell("barrier", "during", "100", ranks=[2, 3])  # there is no coordinator now
    world.coordinator(port)
    assert ["Forgotten"] * 2 == room.answers([0, 1])
    room.tell("barrier", "during", "100", ranks=[0, 1])

    assert ["ok"] * 4 == room.answers()
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    assert 1 == world.jobs.get(world.job_id).round.header.number


def test_watched_job_outlives_the_coordinator(world: World) -> None:
    """The watch finds it at the next one, as soon as its agents have, and follows it to its end."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    agents, workers = start(world, nproc=1)
    with client_of(world) as client, client.watch_job(world.job_id) as states:
        next(states)
        restart(world, coordinator, port, agents)
        world.jobs.wait(world.job_id, lambda job: job.HasField("round"))
        for worker in workers:
            worker.tell("exit", "0")
        last = list(states)[-1].job

    assert job_pb2.OUTCOME_SUCCEEDED == last.outcome


def test_agreement_outlives_the_coordinator(world: World) -> None:
    """Ranks that wait for a slow one when the coordinator is killed meet it at the next."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    agents, workers = start(world)
    room = Room(world, workers)
    assert [False] * 4 == room.ask("agree")
    room.tell("agree", ranks=[0, 1, 2])
    wait_arrived(world, "rallypoint.should_checkpoint", 3)
    restart(world, coordinator, port, agents)
    room.tell("agree", ranks=[3])

    assert [False] * 4 == room.answers()
    assert [False] * 4 == room.ask("agree")


def test_all_ranks_agree_on_a_checkpoint_when_a_node_drains(world: World) -> None:
    """At the same step, although each finds the notice at a moment that no one else knows."""
    _, workers = start(world, "--last-call=60", nnodes="1:2")
    room = Room(world, workers)
    room.tell("steps")
    with client_of(world) as client:
        left = client.drain_node(world.job_id, "b", drain_timeout_s=100, reason="new kernel")
        assert 0 < left.time_left.seconds <= 100
    answers = room.answers()
    assert 1 == len({calls for calls, _ in answers})
    assert [False, False, True, True] == [is_leaving for _, is_leaving in answers]
    assert [False] * 4 == room.ask("agree")  # one checkpoint is enough
    for worker in workers[2:]:
        worker.tell("exit", "0")

    again = world.mailbox.workers(2, round=2)
    assert ["a", "a"] == [worker.node for worker in again]


def marks_of(job: job_pb2.Job) -> dict[str, int]:
    """Return the marks of the current round, in ms."""
    return {field.name: to_ms(value) for field, value in job.round.timeline.ListFields()}


def test_timeline_is_that_of_the_recovery(world: World) -> None:
    """From the failure to the first step, and the same after a restart of the coordinator."""
    port = world.ports.reserve()
    state = f"--state=sqlite:{world.folder / 'state' / 'journal'}"
    coordinator = world.coordinator(port, state)
    agents, workers = start(world, "--max-restarts=1")
    workers[3].tell("exit", "7")
    fresh = world.mailbox.workers(4, round=2)
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))
    assert {"detected", "told", "stopped", "swept", "sealed", "started"} == {*marks_of(job)}
    room = Room(world, sorted(fresh, key=lambda one: one.rank))
    room.ask("mark", "imported")
    job = world.jobs.wait(world.job_id, lambda job: "imported" in marks_of(job))
    coordinator.kill()
    world.coordinator(port, state)
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    room.ask("mark", "process_group")
    world.jobs.wait(world.job_id, lambda job: "process_group" in marks_of(job))
    room.ask("progress", "5", ranks=[0])
    last = marks_of(world.jobs.wait(world.job_id, lambda job: "first_step" in marks_of(job)))

    assert marks_of(job).items() <= last.items()
    known = ("detected", "told", "swept", "sealed", "started", "process_group")
    assert sorted(last[name] for name in known) == [last[name] for name in known]
    assert last["sealed"] <= last["imported"] <= last["process_group"] <= last["first_step"]
    with client_of(world) as client:
        events = client.list_events(world.job_id, kinds=[events_pb2.EVENT_KIND_ROUND_PROGRESSED])
        (event,) = events
        assert job.round.header.number == event.round == 2
        assert event.text.startswith("round 2 took its first step ")


def test_coordinator_dies_between_the_marks_of_workers(world: World) -> None:
    """Agents repeat what it did not journal; a worker that writes garbage disturbs no one."""
    port = world.ports.reserve()
    state = f"--state=sqlite:{world.folder / 'state' / 'journal'}"
    coordinator = world.coordinator(port, state)
    agents, workers = start(world)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    room = Room(world, workers)
    assert ["ok"] * 4 == room.ask("scribble")
    assert ["ok"] * 3 == room.ask("mark", "imported", ranks=[0, 1, 2])
    coordinator.kill()
    assert ["ok"] == room.ask("mark", "process_group", ranks=[0])
    world.coordinator(port, state)
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    assert "imported" not in marks_of(world.jobs.get(world.job_id))
    assert ["ok"] == room.ask("mark", "imported", ranks=[3])
    world.jobs.wait(world.job_id, lambda job: "imported" in marks_of(job))
    assert ["ok"] * 3 == room.ask("mark", "process_group", ranks=[1, 2, 3])
    job = world.jobs.wait(world.job_id, lambda job: "process_group" in marks_of(job))
    found = marks_of(job)

    assert 1 == job.round.header.number
    assert found["sealed"] <= found["imported"] <= found["process_group"]
    assert [[False, False]] * 4 == room.ask("loaded")  # neither gRPC nor a thread


async def test_client_survives_broken_connections(world: World) -> None:
    """A watch sees every change once and in order, and every addition and arrival counts once."""
    _, workers = await asyncio.to_thread(start, world, nproc=1)
    token, epoch = (workers[0].env[f"RALLYPOINT_{name}"] for name in ("WORKER_TOKEN", "EPOCH"))
    run, job_id = Scope.RUN, world.job_id

    async def meet(rank: int) -> int:
        who, generations = Participant(rank=rank), []
        for _ in range(20):
            answer = await client.arrive(job_id, "b", who, timeout_s=120)
            generations.append(answer.generation)
        assert list(range(1, 21)) == generations
        return rank

    async def read() -> list[int]:
        seen: list[int] = []
        while len(seen) < 100:
            seen.append(int((await anext(watch)).kv.value))
        return seen

    with Proxy(world.target) as proxy:
        async with (
            AsyncClient(proxy.address, token=token, epoch=int(epoch)) as client,
            client.watch_keys(job_id, "n", scope=run) as watch,
            asyncio.timeout(240),
            asyncio.TaskGroup() as tasks,
        ):
            reading = tasks.create_task(read())
            meeting = [tasks.create_task(meet(rank)) for rank in (0, 1)]
            for number in range(1, 101):
                if number % 10 == 0:
                    await asyncio.to_thread(proxy.cut)
                added = await client.add_to_key(job_id, "n", 1, scope=run, timeout_s=120)
                assert number == added.sum

    assert list(range(1, 101)) == reading.result()
    assert [0, 1] == [one.result() for one in meeting]
