"""Builds large answers in slices, one answer of the process at a time.

Agents need the event loop too. Between two slices it handles everything that has arrived, from the
first byte to the answer; so do new calls, which then share the next answer. So an agent waits for
one slice at most, however many readers ask.

Lists are read in several turns of a coordinator, one list at a time, a slice in each turn. They
wait for its journal in between, so only other lists of the same coordinator wait for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

SLICE_S = 0.005
"""Longest slice, if no single step of the work takes longer. It takes as long as 100 heartbeats."""
TURNS = 16
"""Turns of the event loop between two slices. What an agent sends takes several: to be read, to be
decided, to be answered. With one it would wait for as many slices."""


class Pace:
    """The order in which the answers of one coordinator are built."""

    def __init__(self, building: asyncio.Lock | None = None) -> None:
        """Start without work; `building` belongs to all coordinators of the process."""
        self._building = building or asyncio.Lock()
        self._reading = asyncio.Lock()

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which no other list is read from this coordinator."""
        return self._reading

    async def drive(self, work: Iterator[None]) -> None:
        """Do all steps of `work`, which waits for nothing."""
        async with self._building:
            ends_s = time.monotonic() + SLICE_S
            for _ in work:
                if time.monotonic() >= ends_s:
                    for _ in range(TURNS):
                        await asyncio.sleep(0)
                    ends_s = time.monotonic() + SLICE_S
