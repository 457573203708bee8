"""What waits for the coordinator's next turn: inputs, and callers that wait for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.state.state import State

INBOX_MAX = 4_096
"""Inputs that may wait. When the inbox is full, the streams of agents are not read until there is
room, and those of relays wait for a moment only."""
TURN_MAX = 1_024
"""Inputs of one turn. Bounds how long readers and deadlines wait."""
GATHER_S = 0.002
"""A turn that follows another one begins so long after it, if only agents have sent something. When
hundreds of them report at once, a turn for each of them costs as much again as their inputs."""


class InboxFull(Exception):
    """There is no room for another input now."""


class Query(Struct):
    """A read or a request, answered after its turn is in the journal."""

    request: inputs.Request | None
    """The request; None for a read."""
    answer: Callable[[State, int], object]
    future: asyncio.Future[object]
    refusal: Refusal | None = None
    """Why the core refused the request; None while it has not."""


Item = inputs.Input | Query


class Inbox:
    """What has arrived since the last turn."""

    def __init__(self) -> None:
        """Begin empty."""
        self._items: asyncio.Queue[Item] = asyncio.Queue(INBOX_MAX)
        self._turned_s = 0.0
        """When the last turn ended, by the loop's clock."""
        self._gathering: asyncio.Future[None] | None = None
        """The wait for further inputs; None: there is none."""

    async def put(self, item: Item) -> None:
        """Add an item. Waits while there is no room."""
        await self._items.put(item)
        if isinstance(item, Query):
            self._end_gathering()

    def put_now(self, item: Item) -> None:
        """Add an item.

        Raises:
            InboxFull: when there is no room.
        """
        try:
            self._items.put_nowait(item)
        except asyncio.QueueFull:
            raise InboxFull from None

    async def get(self, limit_s: float | None) -> list[Item]:
        """Wait for an item; return what a turn has to handle, or nothing when the time is over.

        Args:
            limit_s: how long to wait at most; None: for ever.
        """
        arrived: list[Item] = []
        try:
            async with asyncio.timeout(limit_s):
                arrived.append(await self._items.get())
        except TimeoutError:
            pass
        self.add_to(arrived)
        if arrived and not any(isinstance(item, Query) for item in arrived):
            await self._gather()
            self.add_to(arrived)
        return arrived

    def add_to(self, arrived: list[Item]) -> None:
        """Add what waits, up to the limit of a turn."""
        while len(arrived) < TURN_MAX and not self._items.empty():
            arrived.append(self._items.get_nowait())

    def note_turn(self) -> None:
        """Note that a turn has ended."""
        self._turned_s = asyncio.get_running_loop().time()

    async def _gather(self) -> None:
        """Let more agents report before the next turn, if the last one has just ended.

        Callers do not wait: each of them may ask one thing after another.
        """
        loop = asyncio.get_running_loop()
        due_s = self._turned_s + GATHER_S
        if loop.time() >= due_s:
            return
        self._gathering = loop.create_future()
        timer = loop.call_at(due_s, self._end_gathering)
        try:
            await self._gathering
        finally:
            timer.cancel()
            self._gathering = None

    def _end_gathering(self) -> None:
        if self._gathering is not None and not self._gathering.done():
            self._gathering.set_result(None)

    def dismiss(self, error: Exception) -> None:
        """Take everything out, and fail callers that wait for an answer."""
        while not self._items.empty():
            dismiss((self._items.get_nowait(),), error)


def dismiss(items: Sequence[Item], error: Exception) -> None:
    """Let the callers of queries that no turn has answered know that none will."""
    for item in items:
        if isinstance(item, Query) and not item.future.done():
            item.future.set_exception(error)
            item.future.exception()  # asyncio would report it if the caller has gone
