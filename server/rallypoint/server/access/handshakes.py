"""Counts the connections that end without a call, for one audit line a minute.

gRPC says nothing about a handshake that fails, and not who is connected before a call. What is
known is how many handshakes have begun, and which connections make calls. The others were refused
in their handshake, or were probes that only connect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

LINE_S = 60.0
"""Pause between two lines. A line is about connections that had no call before that already."""
QUIET_S = 600.0
"""How long a connection that makes no further call is remembered, or up to twice as long; if it
makes one later, one handshake that failed is not counted."""


class Lines(Protocol):
    """Writes audit lines."""

    def note_no_calls(self, count: int) -> None:
        """Note so many connections that have ended without a call."""


class Handshakes:
    """Handshakes of which no call has come."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """Begin; `clock_s` returns monotonic time."""
        self._clock_s = clock_s
        self._lock = threading.Lock()
        """For `_open`, which gRPC's threads change, too."""
        self._open = 0
        """Handshakes of which no call has come; below 0 when one is explained before it begins."""
        self._lasting = 0
        """How many these were when there could be a line."""
        self._called, self._called_before = set[str](), set[str]()
        """Peers of connections that have called, and of those that did so longer ago."""
        self._line_s, self._forget_s = clock_s() + LINE_S, clock_s() + QUIET_S

    def note_begun(self) -> None:
        """Note that a handshake begins; gRPC's threads call this."""
        with self._lock:
            self._open += 1

    def note_call(self, peer: str) -> None:
        """Note that a call has come on a connection; `peer` has its address and port."""
        if peer not in self._called:
            self._called.add(peer)
            if peer not in self._called_before:
                self.note_explained()

    def note_explained(self) -> None:
        """Note that a handshake needs no line: a call has come, or this process has probed."""
        with self._lock:
            self._open -= 1

    def look(self, lines: Lines) -> None:
        """Write a line about connections without a call, when it is time for one."""
        now_s = self._clock_s()
        if now_s >= self._line_s:
            self._line_s = now_s + LINE_S
            self._tell(lines, self._lasting)
            self._lasting = self._open
        if now_s >= self._forget_s:
            self._forget_s = now_s + QUIET_S
            self._called, self._called_before = set(), self._called

    def close(self, lines: Lines) -> None:
        """Write what has no line yet: the coordinator ends."""
        self._tell(lines, self._open)

    def _tell(self, lines: Lines, most: int) -> None:
        with self._lock:
            count = max(0, min(most, self._open))
            self._open = max(0, self._open) - count  # below 0: forgotten ones have called again
        if count:
            lines.note_no_calls(count)
