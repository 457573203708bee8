"""Both forms of the client with several coordinators, of which some are dead, frozen or slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from msgspec import Struct

from rallypoint.client import AsyncClient, Client, Scope, attempts, channel, errors, sync_transport
from rallypoint.client.channel import read_targets
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from support.core.served import LIMIT_S, SPEC
from support.machines.proxy import Proxy
from support.routing.fleet import Member, fleet, hanging, job_of

FORMS = pytest.mark.parametrize("form", ["sync", "aio"])
DEAD = "127.0.0.1:1"
"""Where nothing listens."""
JOB = job_of(1)
"""A job of the second coordinator."""
BOTH = barrier_pb2.Expected(participants=barrier_pb2.Participants(names=["x", "y"]))


class Form(Struct):
    """A client, called from a test of asyncio."""

    client: Any

    async def call(self, name: str, *args: Any, **fields: Any) -> Any:
        method = getattr(self.client, name)
        if isinstance(self.client, AsyncClient):
            return await method(*args, **fields)
        return await asyncio.to_thread(method, *args, **fields)

    async def arrive(self, who: str) -> Any:
        """Arrive at the barrier of two."""
        me = barrier_pb2.Participant(name=who)
        return await self.call(
            "arrive", JOB, "b", me, expected=BOTH, scope=Scope.RUN, timeout_s=LIMIT_S
        )

    async def all(self, pages: Any) -> list[Any]:
        """Return the entries of a list."""
        if isinstance(self.client, AsyncClient):
            return [entry async for entry in pages]
        return await asyncio.to_thread(list, pages)

    async def begin(self, watch: Any) -> Any:
        """Wait until a watch has begun; return it."""
        async with asyncio.timeout(LIMIT_S):
            if isinstance(self.client, AsyncClient):
                return await watch.__aenter__()
            return await asyncio.to_thread(watch.__enter__)

    async def next(self, watch: Any) -> Any:
        """Return what a watch brings next."""
        async with asyncio.timeout(LIMIT_S):
            if isinstance(self.client, AsyncClient):
                return await anext(watch)
            return await asyncio.to_thread(next, watch)


@asynccontextmanager
async def form_of(form: str, targets: str, token: str = "") -> AsyncIterator[Form]:
    kind: Any = AsyncClient if form == "aio" else Client
    client = kind(targets, token=token, limit_s=LIMIT_S)
    try:
        yield Form(client)
    finally:
        closed = client.close()
        if closed is not None:
            await closed


async def token_of(member: Member) -> str:
    """Return the token of a worker of the job."""
    agent = member.agent(JOB, 1)
    await agent.hello()
    return (await agent.read()).welcome.desired.run.worker_token


def together(*members: Member) -> str:
    return ",".join(member.address for member in members)


@pytest.fixture
def silent() -> Iterator[list[Proxy]]:
    """Collect proxies that are closed at the end."""
    made: list[Proxy] = []
    yield made
    for proxy in made:
        proxy.__exit__()


def freezing(silent: list[Proxy], member: Member) -> Proxy:
    """Return a proxy in front of a coordinator, which can seem frozen."""
    silent.append(Proxy(member.address))
    return silent[-1]


def test_addresses_are_read_as_agents_do() -> None:
    """With the coordinator's port, each once; what is no list may be whatever gRPC knows."""
    assert ("a:50051", "b:7") == read_targets("a, b:7,a:50051")
    assert ("unix:/run/rallypoint",) == read_targets("unix:/run/rallypoint")
    with pytest.raises(ValueError, match="'b:x' is not HOST:PORT"):
        Client("a:1,b:x")


@FORMS
async def test_dead_coordinator_is_passed_over(form: str) -> None:
    """Whatever the call: one that reads, one that counts, a list and a watch."""
    async with fleet() as made, form_of(form, f"{DEAD},{together(*made.members)}") as one:
        watch = one.client.watch_job(JOB, across_runs=True)
        await one.call("create_job", JOB, SPEC)
        answer = await one.call("get_job", JOB)

        assert JOB == answer.job.job_id
        assert JOB == (await one.next(watch)).job.job_id


@FORMS
async def test_coordinator_that_never_answers_costs_a_moment(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stands, but each attempt has its own limit, far below that of the call."""
    monkeypatch.setattr(attempts, "SHARED_S_MAX", 0.2)
    async with fleet() as made, hanging() as (address, server):
        async with form_of(form, f"{address},{together(*made.members)}") as one:
            await one.call("create_job", JOB, SPEC)
            async with asyncio.timeout(LIMIT_S):
                await server.taken.acquire()
            await one.call("get_job", JOB)

        assert server.taken.locked(), "the second call has not begun where the first one succeeded"


@FORMS
async def test_change_counts_once_whoever_takes_it(
    form: str, silent: list[Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first coordinator has made the change, but its answer is lost."""
    monkeypatch.setattr(attempts, "SHARED_S_MAX", 0.3)
    monkeypatch.setattr(sync_transport, "IDLE_S", LIMIT_S)  # no health check before the second
    async with fleet() as made:
        first, owner = made.members
        proxy = freezing(silent, first)
        token = await token_of(owner)
        async with form_of(form, f"{proxy.address},{owner.address}", token) as one:
            await one.call("add_to_key", JOB, "k", 1, scope=Scope.RUN)
            proxy.withhold_answers()
            answer = await one.call("add_to_key", JOB, "k", 1, scope=Scope.RUN)

            assert 2 == answer.sum


@FORMS
async def test_barrier_and_watch_outlive_a_frozen_coordinator(
    form: str, silent: list[Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pings notice it while calls wait; an arrival that is repeated elsewhere counts once."""
    monkeypatch.setattr(channel, "SHARED_KEEPALIVE_S", 1)
    monkeypatch.setattr(channel, "SHARED_KEEPALIVE_TIMEOUT_S", 1)
    async with fleet() as made:
        first, owner = made.members
        proxy = freezing(silent, first)
        token = await token_of(owner)
        targets = f"{proxy.address},{owner.address}"
        async with meeting(form, targets, token) as (one, y, waiting):
            watch = await one.begin(one.client.watch_keys(JOB, scope=Scope.RUN))
            proxy.fall_silent()
            await y.call("put_key", JOB, "k", b"v", scope=Scope.RUN)

            assert b"v" == (await one.next(watch)).kv.value
            assert 2 == (await y.arrive("y")).participant_count
            assert 2 == (await waiting).participant_count


@FORMS
async def test_moved_job_keeps_barrier_and_keys(form: str) -> None:
    """Who waits at a barrier and who watches keys notices nothing but a pause."""
    async with fleet() as made:
        first, owner = made.members
        token = await token_of(owner)
        async with meeting(form, together(owner, first), token) as (one, y, waiting):
            watch = await one.begin(one.client.watch_keys(JOB, scope=Scope.RUN))
            await one.call("add_to_key", JOB, "k", 1, scope=Scope.RUN)
            await made.give(first, 1)
            await y.call("add_to_key", JOB, "k", 1, scope=Scope.RUN)

            assert [b"1", b"2"] == [(await one.next(watch)).kv.value for _ in range(2)]
            assert 2 == (await y.arrive("y")).participant_count
            assert 2 == (await waiting).participant_count


@asynccontextmanager
async def meeting(
    form: str, targets: str, token: str
) -> AsyncIterator[tuple[Form, Form, asyncio.Task[Any]]]:
    """Yield x, who waits at the barrier, y, who does not yet, and the task in which x waits."""
    last = targets.rpartition(",")[2]
    async with form_of(form, targets, token) as x, form_of("aio", last, token) as y:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(x.arrive("x"))
            async with asyncio.timeout(LIMIT_S):
                while not [barrier async for barrier in y.client.list_barriers(JOB)]:
                    pass  # each look is a call
            yield x, y, waiting


@FORMS
async def test_call_waits_for_the_owner_within_its_own_limit(form: str) -> None:
    """A job without an owner is served when it has one; a shorter call says why it failed."""
    async with fleet() as made:
        first, owner = made.members
        await made.take(1)
        async with form_of(form, together(first, owner)) as one, asyncio.TaskGroup() as tasks:
            with pytest.raises(errors.Unavailable, match="no coordinator owns shard 1"):
                await one.call("get_job", JOB, timeout_s=0.3)
            created = tasks.create_task(one.call("create_job", JOB, SPEC))
            await made.give(first, 1)
            await created
            answer = await one.call("get_job", JOB)

        assert JOB == answer.job.job_id


async def test_report_that_fails_leads_the_next_one_elsewhere() -> None:
    """A worker that only reports its progress waits for no report."""
    async with fleet() as made:
        token = await token_of(made.members[1])
        with Client(f"{DEAD},{together(*made.members)}", token=token) as client:
            ends = [await end_of(client, step) for step in (1, 2, 3)]

        assert grpc.StatusCode.UNAVAILABLE == ends[0]
        assert grpc.StatusCode.OK == ends[-1]


async def end_of(client: Client, step: int) -> grpc.StatusCode:
    """Return how a report of progress ends."""
    report = client.begin_report(JOB, step, LIMIT_S)
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()
    report.add_done_callback(lambda _: loop.call_soon_threadsafe(seen.set))  # after the client's
    async with asyncio.timeout(LIMIT_S):
        await seen.wait()
    code: grpc.StatusCode = report.code()
    return code


@FORMS
async def test_silent_host_is_noticed_with_a_single_coordinator(
    form: str, silent: list[Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pings break the connection, so the watch connects again."""
    monkeypatch.setattr(channel, "KEEPALIVE_S", 1)
    monkeypatch.setattr(channel, "KEEPALIVE_TIMEOUT_S", 1)
    async with fleet(1) as made:
        proxy = freezing(silent, made.members[0])
        async with form_of(form, proxy.address) as one, asyncio.TaskGroup() as tasks:
            await one.call("create_job", JOB, SPEC)
            watch = await one.begin(one.client.watch_job(JOB))
            await one.next(watch)
            proxy.fall_silent()
            changed = tasks.create_task(one.next(watch))
            await asyncio.to_thread(proxy.wait_accepted, 2)
            proxy.speak()
            await one.call("cordon_node", JOB, "n")

            assert (await changed).job.revision > 0


@FORMS
async def test_watches_continue_after_a_position(form: str) -> None:
    """Lists of all jobs and events have one for all owners; a watch after it misses nothing."""
    async with fleet() as made, form_of(form, f"{DEAD},{together(*made.members)}") as one:
        await one.call("create_job", JOB, SPEC)
        jobs, events = one.client.list_jobs(), one.client.list_events()
        assert [JOB] == [job.job_id for job in await one.all(jobs)]
        seen = len(await one.all(events))
        assert seen > 0
        other = job_of(0)
        await one.call("create_job", other, SPEC)
        changes = one.client.watch_jobs(after=jobs.first.position)
        news = one.client.watch_events(after=events.first.position)

        assert [other] == [job.job_id for job in (await one.next(changes)).jobs]
        assert other == (await one.next(news)).job_id
        later = await one.all(one.client.list_events(after=events.first.position))
        assert {other} == {event.job_id for event in later}
