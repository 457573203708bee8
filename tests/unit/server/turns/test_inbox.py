"""Inputs of agents wait for each other after a turn; callers wait for nothing."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.server import inbox as module
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.inbox import Inbox, Item, Query, dismiss

BROKEN = inputs.JobBroken(JobId("job"), "an input like any other")
LIMIT_S = 30.0
LONG_S = 3600.0


def query() -> Query:
    """Return a read that a caller waits for."""
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    return Query(None, lambda state, now_ms: None, future)


async def give_turns() -> None:
    """Let what would follow at once have its turn."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_first_input_after_a_pause_waits_for_no_other() -> None:
    """A failure on a quiet machine is handled at once."""
    inbox = Inbox()
    await inbox.put(BROKEN)

    assert await inbox.get(LIMIT_S) == [BROKEN]


async def test_inputs_right_after_a_turn_share_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many come until it begins."""
    monkeypatch.setattr(module, "GATHER_S", 0.5)
    inbox = Inbox()
    inbox.note_turn()
    await inbox.put(BROKEN)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(inbox.get(None))
        await asyncio.sleep(0)
        await inbox.put(BROKEN)

    assert getting.result() == [BROKEN, BROKEN]


@pytest.mark.parametrize("is_first", [True, False])
async def test_caller_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    """It gets its answer although agents have reported just now."""
    monkeypatch.setattr(module, "GATHER_S", LONG_S)
    inbox, one = Inbox(), query()
    inbox.note_turn()
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(inbox.get(None))
        items: list[Item] = [one, BROKEN] if is_first else [BROKEN, one]
        for item in items:
            await inbox.put(item)
            await asyncio.sleep(0)

    assert items[0] in getting.result()
    assert one in getting.result()


async def test_agents_wait_as_long_as_they_have_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn begins before."""
    monkeypatch.setattr(module, "GATHER_S", LONG_S)
    inbox = Inbox()
    inbox.note_turn()
    async with asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(inbox.get(None))
        await inbox.put(BROKEN)
        await give_turns()

        assert not getting.done()
        getting.cancel()


async def test_deadline_gets_a_turn_without_inputs() -> None:
    """Nothing has come in time."""
    assert await Inbox().get(0.0) == []


async def test_callers_are_let_go_at_the_end() -> None:
    """Those whose query waits, and those whose turn did not end."""
    inbox, waiting, taken = Inbox(), query(), query()
    await inbox.put(BROKEN)
    await inbox.put(waiting)
    inbox.dismiss(LookupError("it has ended"))
    dismiss((taken,), LookupError("it has ended"))

    for one in (waiting, taken):
        with pytest.raises(LookupError):
            await one.future
    assert await inbox.get(0.0) == []


async def test_caller_that_came_right_after_an_agent_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are there before the turn is awake."""
    monkeypatch.setattr(module, "GATHER_S", LONG_S)
    inbox, one = Inbox(), query()
    inbox.note_turn()
    await inbox.put(BROKEN)
    await inbox.put(one)

    async with asyncio.timeout(LIMIT_S):
        assert await inbox.get(None) == [BROKEN, one]
