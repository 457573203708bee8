"""Cuts off writes that take too long: one timer for all of them.

A peer that does not read makes a write wait for ever, so each has a limit. A timer per write would
cost as much as the write; here one waits for the earliest end, and only while there is any.
"""

from __future__ import annotations

import asyncio


class Stalls:
    """The writes that are under way."""

    def __init__(self) -> None:
        """Begin without any."""
        self._due_s: dict[asyncio.Timeout, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, scope: asyncio.Timeout, limit_s: float) -> None:
        """Note that a write begins; `scope`, entered without a limit, expires if it stalls.

        Args:
            scope: of the one writing task; it has one write at a time.
            limit_s: what the write may take, in seconds.
        """
        due_s = asyncio.get_running_loop().time() + limit_s
        self._due_s[scope] = due_s
        self._wake_by(due_s)

    def end(self, scope: asyncio.Timeout) -> None:
        """Note that it has ended."""
        self._due_s.pop(scope, None)

    def _wake_by(self, due_s: float) -> None:
        """Look at `due_s`, or before."""
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due_s, self._look)

    def _look(self) -> None:
        """Let expire what is overdue, and look again when the next one would be."""
        now_s = asyncio.get_running_loop().time()
        self._timer = None
        for scope, due_s in list(self._due_s.items()):
            if due_s <= now_s:
                del self._due_s[scope]
                scope.reschedule(now_s)
        if self._due_s:
            self._wake_by(min(self._due_s.values()))
