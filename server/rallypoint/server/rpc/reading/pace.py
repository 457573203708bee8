"""Builds large answers in slices, one answer at a time.

Agents need the event loop too. Between two slices it handles everything that has arrived, from the
first byte to the answer; so do new calls, which then share the next answer. Only one answer is
built at a time. So an agent waits for one slice at most, however many readers ask.
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
    """The order in which answers are built."""

    def __init__(self) -> None:
        """Start without work."""
        self._lock = asyncio.Lock()

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which no other answer is built."""
        return self._lock

    async def drive(self, work: Iterator[None]) -> None:
        """Do all steps of `work`."""
        async with self._lock:
            await self.slice(work)

    async def slice(self, work: Iterator[None]) -> None:
        """Do all steps of `work`; the caller has the turn."""
        ends_s = time.monotonic() + SLICE_S
        for _ in work:
            if time.monotonic() >= ends_s:
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                ends_s = time.monotonic() + SLICE_S
