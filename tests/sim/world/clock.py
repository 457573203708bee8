"""Virtual time: a heap of calls, run in order of time, then in the order they were made."""

from __future__ import annotations

import heapq
from collections.abc import Callable

CALLS_PER_MS_MAX = 50_000
"""More calls within one millisecond than any seed needs: an endless loop."""


class Livelock(Exception):
    """Time does not pass any more."""


class Timer:
    """A call that is due; cancelling it is free."""

    __slots__ = ("call", "cancelled")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """The time of the simulated world, in ms from 0, and what happens in it."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.calls = 0
        self._heap: list[tuple[int, int, Timer]] = []
        self._asked = 0

    def at(self, at_ms: int, call: Callable[[], None]) -> Timer:
        """Call at a time that is not before now."""
        timer = Timer(call)
        self._asked += 1
        heapq.heappush(self._heap, (max(at_ms, self.now_ms), self._asked, timer))
        return timer

    def after(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        """Call after a delay."""
        return self.at(self.now_ms + delay_ms, call)

    def run_until(self, until_ms: int) -> None:
        """Run every call that is due up to and including `until_ms`."""
        calls = 0
        while self._heap and self._heap[0][0] <= until_ms:
            at_ms, _, timer = heapq.heappop(self._heap)
            calls = calls + 1 if at_ms == self.now_ms else 0
            if calls > CALLS_PER_MS_MAX:
                raise Livelock(f"at {at_ms} ms")
            self.now_ms = at_ms
            if not timer.cancelled:
                self.calls += 1
                timer.call()
        self.now_ms = until_ms
