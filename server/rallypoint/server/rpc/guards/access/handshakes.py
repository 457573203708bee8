"""Counts the connections that end without a call, for one audit line a minute.

gRPC says nothing about a handshake that fails, and not who is connected before a call. What is
known is how many handshakes have begun, and which connections make calls. The others were refused
in their handshake, or were probes that only connect.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

LINE_S = 60.0
"""Pause between two lines."""
LOOKS = 10
"""Looks, one a second, at which a connection has to be without a call: a handshake takes seconds
when hundreds of agents connect at once."""
QUIET_S = 600.0
"""How long a connection that makes no further call is remembered; if it makes one later, one
handshake that failed is not counted."""


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
        self._looks = deque[int](maxlen=LOOKS)
        """How many these were at the last looks."""
        self._called: dict[str, float] = {}
        """When connections have called last, by their peers."""
        self._line_s = self._tidy_s = clock_s()
        """When there may be a line, and when connections are forgotten."""

    def note_begun(self) -> None:
        """Note that a handshake begins; gRPC's threads call this."""
        with self._lock:
            self._open += 1

    def note_call(self, peer: str) -> None:
        """Note that a call has come on a connection; `peer` has its address and port."""
        if peer not in self._called:
            self.note_explained()
        self._called[peer] = self._clock_s()

    def note_explained(self) -> None:
        """Note that a handshake needs no line: a call has come, or this process has probed."""
        with self._lock:
            self._open -= 1

    def look(self, lines: Lines) -> None:
        """Write a line about connections without a call, when it is time for one."""
        now_s = self._clock_s()
        self._looks.append(self._open)
        if len(self._looks) == LOOKS:
            if max(self._looks) < 0:  # connections that were forgotten have called again
                self._take(max(self._looks))
            elif now_s >= self._line_s and self._tell(lines):
                self._line_s = now_s + LINE_S
        if now_s >= self._tidy_s:
            self._tidy_s = now_s + LINE_S
            old_s = now_s - QUIET_S
            self._called = {peer: at_s for peer, at_s in self._called.items() if at_s > old_s}

    def close(self, lines: Lines) -> None:
        """Write what has no line yet: the coordinator ends."""
        self._tell(lines)

    def _tell(self, lines: Lines) -> bool:
        """Write a line about those that were without a call at all of the last looks, if any."""
        count = min((*self._looks, self._open))
        if count <= 0:
            return False
        self._take(count)
        lines.note_no_calls(count)
        return True

    def _take(self, count: int) -> None:
        with self._lock:
            self._open -= count
        self._looks.clear()
