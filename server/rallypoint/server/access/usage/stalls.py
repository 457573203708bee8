"""Ends writes that take too long; all writes share one timer.

A write to a peer that does not read would wait for ever, so every write has a limit. A timer for
each would cost as much as the write itself. One timer waits for the earliest limit instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from rallypoint.base.log import get_logger
from rallypoint.server.access.usage.lines import may_log
from rallypoint.server.contract.calls import CallRefused, Context
from rallypoint.server.contract.errors import stalled_status

log = get_logger()

STALL_S_MAX = 30.0
"""Longest time that a watcher may take to read an answer. An agent has only a lease, but a person
may suspend a watching program for a moment."""


class Stalls:
    """The writes in progress."""

    def __init__(self) -> None:
        """Start without writes."""
        self._due_s: dict[asyncio.Timeout, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def writing(self, context: Context) -> AsyncIterator[Callable[[Any], Awaitable[None]]]:
        """Return how a watch writes its answers, one at a time.

        Raises:
            CallRefused: when the watcher does not read one in time.
        """
        try:
            async with asyncio.timeout(None) as scope:

                async def write(answer: Any) -> None:
                    self.begin(scope, STALL_S_MAX)
                    try:
                        await context.write(answer)
                    finally:
                        self.end(scope)

                yield write
        except TimeoutError:
            if may_log():
                log.warning("watcher_stalled", limit_s=STALL_S_MAX)
            raise CallRefused(stalled_status(STALL_S_MAX)) from None

    def begin(self, scope: asyncio.Timeout, limit_s: float) -> None:
        """Note that a write begins.

        Args:
            scope: the writing task's timeout, entered without a limit; it expires when the write
                takes too long. A task has one write at a time.
            limit_s: how long the write may take.
        """
        due_s = asyncio.get_running_loop().time() + limit_s
        self._due_s[scope] = due_s
        self._wake_by(due_s)

    def end(self, scope: asyncio.Timeout) -> None:
        """Note that the write of `scope` has ended."""
        self._due_s.pop(scope, None)

    def _wake_by(self, due_s: float) -> None:
        """Check the limits at `due_s`, or earlier."""
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due_s, self._look)

    def _look(self) -> None:
        """Expire overdue writes; set the timer for the next limit."""
        now_s = asyncio.get_running_loop().time()
        self._timer = None
        for scope, due_s in list(self._due_s.items()):
            if due_s <= now_s:
                del self._due_s[scope]
                scope.reschedule(now_s)
        if self._due_s:
            self._wake_by(min(self._due_s.values()))
