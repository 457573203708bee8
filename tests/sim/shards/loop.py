"""The event loop of a coordinator's process, on the clock of the simulated world.

The product's own code for owners of shards runs in it. Everything else of the simulation are plain
calls on the same clock.
"""

from __future__ import annotations

import asyncio
from functools import partial

from sim.shells.loop import Loop
from sim.world.clock import Clock, Timer

MS_NS = 1_000_000


class Ticks:
    """What a `Loop` asks of its schedule, on the world's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @property
    def now_ns(self) -> int:
        """Return the time."""
        return self._clock.now_ms * MS_NS

    def clock_ns(self) -> int:
        """Return the time: a process here computes in no time."""
        return self.now_ns

    def add(self, at_ns: int, timer: Timer | asyncio.TimerHandle | None, loop: Loop | None) -> None:
        """Make a timer due."""
        assert isinstance(timer, asyncio.TimerHandle) and loop is not None
        # In the next millisecond: a float that is a little above the present one never ends else.
        self._clock.at(at_ns // MS_NS + 1, partial(self._fire, timer, loop))

    def _fire(self, timer: asyncio.TimerHandle, loop: Loop) -> None:
        if not timer.cancelled() and not loop.is_dead:
            loop.ready.append(timer)
            self.queue(loop)

    def queue(self, loop: Loop) -> None:
        """Give a process its turn: in this millisecond, or when it is no longer frozen."""
        if loop.is_queued or loop.is_dead:
            return
        loop.is_queued = True
        self._clock.at(-(-loop.wake_ns // MS_NS), partial(self._turn, loop))

    def _turn(self, loop: Loop) -> None:
        loop.is_queued = False
        if loop.is_dead:
            return
        if loop.wake_ns > self.now_ns:  # frozen while it waited for its turn
            self.queue(loop)
            return
        loop.turn()
