"""Cuts off writes that take too long: one timer for all of them.

A peer that does not read makes a write wait for ever, so each has a limit. A timer per write would
cost as much as the write; here one looks at the oldest, and only while there is any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Stalls:
    """The writes that are under way, oldest first."""

    def __init__(self, limit_s: Callable[[], float]) -> None:
        """Cut off what takes longer than `limit_s()`, which may change, in seconds."""
        self._limit_s = limit_s
        self._begun_s: dict[asyncio.Timeout, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, scope: asyncio.Timeout) -> None:
        """Note that a write begins; `scope`, entered without a limit, expires if it stalls."""
        loop = asyncio.get_running_loop()
        self._begun_s[scope] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._limit_s(), self._look)

    def end(self, scope: asyncio.Timeout) -> None:
        """Note that it has ended."""
        self._begun_s.pop(scope, None)

    def _look(self) -> None:
        """Let expire what is overdue, and look again when the next one would be."""
        loop = asyncio.get_running_loop()
        now_s, limit_s = loop.time(), self._limit_s()
        self._timer = None
        for scope, begun_s in list(self._begun_s.items()):
            if begun_s + limit_s > now_s:
                self._timer = loop.call_at(begun_s + limit_s, self._look)
                return
            del self._begun_s[scope]
            scope.reschedule(now_s)
