"""Writes that take too long are cut off, and others are not."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.server.access.tokens import WorkerTokens
from rallypoint.server.access.usage.stalls import Stalls
from rallypoint.server.agents.outbox import Outbox, Outboxes
from rallypoint.server.agents.service import AgentService
from rallypoint.server.core.messages.effects import Notify
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.state.state import State
from rallypoint.v1 import agent_service_pb2 as agent_pb2

LIMIT_S = 0.05
TEST_S_MAX = 60.0


async def is_cut_off(stalls: Stalls, done: asyncio.Event, limit_s: float = LIMIT_S) -> bool:
    """Write until `done`; return whether it took too long."""
    try:
        async with asyncio.timeout(None) as scope:
            stalls.begin(scope, limit_s)
            await done.wait()
    except TimeoutError:
        return True
    finally:
        stalls.end(scope)
    return False


async def test_each_stalled_write_expires() -> None:
    """Two writes that never end are cut off; one beside them that ends is not."""
    stalls, done = Stalls(), asyncio.Event()
    async with asyncio.timeout(TEST_S_MAX), asyncio.TaskGroup() as tasks:
        quick = tasks.create_task(is_cut_off(stalls, done))
        stalled = [tasks.create_task(is_cut_off(stalls, asyncio.Event())) for _ in range(2)]
        await asyncio.sleep(0)  # all three have begun
        done.set()

    assert [False, True, True] == [task.result() for task in (quick, *stalled)]


async def test_a_write_that_begins_later_has_its_whole_time() -> None:
    """The timer that an older write has set does not cut off a younger one."""
    loop = asyncio.get_running_loop()
    stalls, older = Stalls(), asyncio.Event()
    async with asyncio.timeout(TEST_S_MAX), asyncio.TaskGroup() as tasks:
        tasks.create_task(is_cut_off(stalls, older))
        loop.call_later(LIMIT_S / 2, older.set)
        await older.wait()
        begun_s = loop.time()
        younger = await is_cut_off(stalls, asyncio.Event())

    assert younger
    assert loop.time() - begun_s >= LIMIT_S * 0.99  # the loop's clock is that coarse


async def test_a_shorter_limit_is_not_kept_waiting() -> None:
    """A write that may take less than one that began before is cut off in its own time."""
    stalls, patient = Stalls(), asyncio.Event()
    async with asyncio.timeout(TEST_S_MAX), asyncio.TaskGroup() as tasks:
        longer = tasks.create_task(is_cut_off(stalls, patient, 2 * TEST_S_MAX))
        await asyncio.sleep(0)  # it has begun
        shorter = await is_cut_off(stalls, asyncio.Event())
        patient.set()

    assert (shorter, longer.result()) == (True, False)


@pytest.mark.parametrize(("spec", "limit_s"), [(JobSpec(), 0.05), (JobSpec(lease_ms=80), 0.08)])
async def test_peer_that_does_not_read_loses_its_stream(spec: JobSpec, limit_s: float) -> None:
    """A write that waits for a whole lease of its job ends the stream with a status."""

    class Unread:
        async def write(self, message: agent_pb2.SessionResponse) -> None:
            await asyncio.Event().wait()

    state = State("c", 1, timing=Timing(heartbeat_ms=10, lease_ms=50))
    outboxes = Outboxes()
    service = AgentService(None, outboxes, state, WorkerTokens("c"))  # type: ignore[arg-type]  # it is not used
    outbox = Outbox(SessionId("s"), 1, JobId("job"), spec, notify=Notify(SessionId("s"), ()))
    outbox.wake.set()
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    async with asyncio.timeout(TEST_S_MAX):
        await service._write(Unread(), outbox)  # type: ignore[arg-type]

    assert loop.time() - begun_s >= limit_s * 0.99  # the loop's clock is that coarse
    assert outbox.end is not None
