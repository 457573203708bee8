"""Deadlines: when the coordinator acts without an input.

One deadline per key; setting it again moves it. To move it later, as every heartbeat does with its
lease, costs one dict entry and no heap work. The heap entry stays where it is; when it is popped,
it is pushed again with the deadline's current time. So the cost of a tick depends on the expired
deadlines, not on all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from enum import IntEnum


class DeadlineKind(IntEnum):
    """The kind of a deadline. The value breaks ties within one millisecond."""

    WINDOW = 0  # the coordinator has listened long enough for rounds to adopt
    ADOPT = 1  # the startup window has closed; subject: job
    GRACE = 2  # a broken stream was not restored; subject: session
    LEASE = 3  # a node was silent for too long; subject: session
    START = 4  # members must have started; subject: job
    STOP = 5  # members must be clean; subject: job
    FORMING = 6  # a wait of a forming round ends; subject: job
    GROWTH = 7  # newcomers join the next round; subject: job
    ABANDON = 8  # no node returned in time; subject: job
    FORGET = 9  # an ended job is dropped; subject: job
    DRAIN = 10  # the time of draining members is up; subject: job
    QUARANTINE_END = 11  # subject: job
    CULPRIT = 12  # the wait for the culprit's own failure ends; subject: job

    HANG = 13  # a round may be suspected to hang, or its evidence is overdue; subject: job
    BARRIER = 14  # a barrier is overdue, or its end is forgotten; subject: job

    __hash__ = int.__hash__  # Enum's own is slow, and every key is hashed several times a step


OF_JOBS = tuple(
    kind
    for kind in DeadlineKind
    if kind not in (DeadlineKind.WINDOW, DeadlineKind.GRACE, DeadlineKind.LEASE)
)
"""Deadlines whose subject is a job."""
_NO_WAITS = frozenset({DeadlineKind.LEASE, DeadlineKind.FORGET})
"""Deadlines for which nothing waits: a connected node moves its lease, and a job that has ended is
remembered."""
DeadlineKey = tuple[DeadlineKind, str]
DROPPED_MAX = 1_024
"""Dropped deadlines that the heap may hold, besides as many as there are others."""


class Deadlines:
    """A priority queue of deadlines that move."""

    def __init__(self) -> None:
        """Start without deadlines."""
        self._at: dict[DeadlineKey, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._heaped: dict[DeadlineKey, int] = {}
        self.waits = 0
        """Deadlines that something waits for: the time that passes has to survive a crash."""

    def get(self, key: DeadlineKey) -> int | None:
        """Return when `key` is due, in ms of journal time, or None."""
        return self._at.get(key)

    def items(self) -> Iterable[tuple[DeadlineKey, int]]:
        """Return all deadlines, in any order."""
        return self._at.items()

    def set(self, key: DeadlineKey, at_ms: int | None) -> None:
        """Set, move or (None) drop the deadline of `key`."""
        is_known = key in self._at
        if key[0] not in _NO_WAITS:
            self.waits += (at_ms is not None) - is_known
        if at_ms is None:
            self._at.pop(key, None)
            if len(self._heap) > 2 * len(self._at) + DROPPED_MAX:
                self._rebuild()
            return
        self._at[key] = at_ms
        heaped = self._heaped.get(key)
        if heaped is None or at_ms < heaped:
            self._heaped[key] = at_ms
            heapq.heappush(self._heap, (at_ms, key[0], key[1]))

    def _rebuild(self) -> None:
        """Remove dropped deadlines from the heap: some would be due in a day."""
        self._heaped = dict(self._at)
        self._heap = [(at_ms, key[0], key[1]) for key, at_ms in self._at.items()]
        heapq.heapify(self._heap)

    def first(self) -> tuple[int, DeadlineKey] | None:
        """Return the earliest deadline and its key, or None when there is none."""
        while self._heap:
            heaped_ms, kind, subject = self._heap[0]
            key = (DeadlineKind(kind), subject)
            due_ms = self._at.get(key)
            if due_ms == heaped_ms:
                return due_ms, key
            heapq.heappop(self._heap)
            if self._heaped.get(key) != heaped_ms:
                continue  # a later push of the same key has an earlier entry, which counts
            del self._heaped[key]
            if due_ms is not None:
                self.set(key, due_ms)
        return None
