"""Signals that have to wait, for notices or for a look at the workers, keep their order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rallypoint.agent.round.parts import NodeParts
from rallypoint.agent.round.round import Round

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


class Node:
    """A round whose only worker writes to a file, and what the helper was asked to send."""

    def __init__(self, tasks: asyncio.TaskGroup, looks: Looks, notices: Notices) -> None:
        self.sent: list[tuple[int, bool]] = []
        parts = SimpleNamespace(
            tasks=tasks,
            exits=looks,
            notices=notices,
            preloader=None,
            helper=SimpleNamespace(is_gone=False, request=lambda request: request(self)),
            folders=SimpleNamespace(end_round=lambda number: None),
            post=lambda input: None,
        )
        self.parts = cast(NodeParts, parts)
        self.round = Round(self.parts)
        self.round.workers[1] = self.worker()

    def worker(self) -> Any:
        return SimpleNamespace(output=SimpleNamespace(is_file=True), is_signalled=False)

    def signal(self, signum: int, *, alone: bool) -> None:
        self.sent.append((signum, alone))

    def sweep(self, token: int, limit_ms: int) -> None:
        self.round.note_clean()


@pytest.mark.parametrize("is_writing", [True, False], ids=["notices", "look"])
async def test_signals_do_not_overtake_one_that_waits(is_writing: bool) -> None:
    """The SIGTERM at the end of a drain comes after the drain signal, forwarded ones in between."""
    looks, notices = Looks(), Notices(is_writing=is_writing)
    if is_writing:
        looks.may_end.set()
    async with asyncio.TaskGroup() as tasks:
        node = Node(tasks, looks, notices)
        node.round.signal(USR1)
        notices.is_writing = False  # what is written later is ready at once
        node.round.forward(USR2)
        node.round.signal(TERM)
        assert node.sent == []
        looks.may_end.set()
        notices.may_end.set()

    assert node.sent == [(USR1, False), (USR2, True), (TERM, False)]


async def test_signal_of_an_earlier_round_is_not_sent() -> None:
    """What still waits when the round is swept was meant for workers that are gone."""
    looks = Looks()
    async with asyncio.TaskGroup() as tasks:
        node = Node(tasks, looks, Notices(is_writing=False))
        node.round.signal(TERM)
        node.round.sweep(1)
        Round(node.parts).forward(USR2)
        looks.may_end.set()

    assert node.sent == [(USR2, True)]
