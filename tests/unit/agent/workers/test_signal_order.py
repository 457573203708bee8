"""Signals that have to wait, for notices or for a look at the workers, keep their order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rallypoint.agent.workers.signals.delivery import Delivery

USR1, USR2, TERM = 10, 12, 15


class Looks:
    """Looks at workers for as long as the test wants."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def look(self, workers: Any) -> None:
        if workers:
            await self.may_end.wait()


class Notices:
    """A notice file that is being written for as long as the test wants."""

    def __init__(self, *, is_writing: bool) -> None:
        self.is_writing = is_writing
        self.may_end = asyncio.Event()

    async def written(self) -> None:
        if self.is_writing:
            await self.may_end.wait()


@pytest.mark.parametrize("is_writing", [True, False], ids=["notices", "look"])
async def test_signals_do_not_overtake_one_that_waits(is_writing: bool) -> None:
    """The SIGTERM at the end of a drain comes after the drain signal, forwarded ones in between."""
    looks, notices, sent = Looks(), Notices(is_writing=is_writing), list[tuple[int, bool]]()
    output = SimpleNamespace(is_file=True)
    worker: Any = SimpleNamespace(output=output, is_signalled=False)
    parts: dict[str, Any] = {"exits": looks, "notices": notices}
    if is_writing:
        looks.may_end.set()
    async with asyncio.TaskGroup() as tasks:
        delivery = Delivery(
            send=lambda signum, alone: sent.append((signum, alone)),
            is_starting=lambda: False,
            workers={1: worker},
            tasks=tasks,
            **parts,
        )
        delivery.begin(1)
        delivery.signal(USR1)
        notices.is_writing = False  # what is written later is ready at once
        delivery.forward(USR2)
        delivery.signal(TERM)
        assert sent == []
        looks.may_end.set()
        notices.may_end.set()

    assert sent == [(USR1, False), (USR2, True), (TERM, False)]


async def test_signal_of_an_earlier_round_is_not_sent() -> None:
    """What still waits when the next round starts was meant for workers that are gone."""
    looks, sent = Looks(), list[tuple[int, bool]]()
    worker: Any = SimpleNamespace(output=SimpleNamespace(is_file=True), is_signalled=False)
    parts: dict[str, Any] = {"exits": looks, "notices": Notices(is_writing=False)}
    async with asyncio.TaskGroup() as tasks:
        delivery = Delivery(
            send=lambda signum, alone: sent.append((signum, alone)),
            is_starting=lambda: False,
            workers={1: worker},
            tasks=tasks,
            **parts,
        )
        delivery.begin(1)
        delivery.signal(TERM)
        delivery.begin(2)
        delivery.forward(USR2)
        looks.may_end.set()

    assert sent == [(USR2, True)]
