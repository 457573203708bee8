"""When the coordinator has to act although nothing happens.

One deadline per key; setting it again moves it. Moving one later costs one dict entry and no heap
work (a heartbeat moves its lease that way): the heap entry stays where it is and, when it comes up,
is pushed again at the deadline's current time. So a tick costs what has expired, not what exists.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from enum import IntEnum


class DeadlineKind(IntEnum):
    """What is due. The value breaks ties between deadlines of the same millisecond."""

    WINDOW = 0  # the coordinator has listened long enough for rounds to adopt
    GRACE = 1  # a broken stream has not come back; subject: session
    LEASE = 2  # a node was silent for too long; subject: session
    START = 3  # members must have started; subject: job
    STOP = 4  # members must be clean; subject: job
    FORMING = 5  # a wait of a forming round ends; subject: job
    GROWTH = 6  # newcomers are taken in; subject: job
    ABANDON = 7  # nobody came back; subject: job
    FORGET = 8  # an ended job is dropped; subject: job
    DRAIN = 9  # the time of draining members is over; subject: job
    HEALTH = 10  # a quarantine ends; subject: job
    CULPRIT = 11  # the round stops although only victims were heard of; subject: job

    __hash__ = int.__hash__  # Enum's own is slow, and every key is hashed several times a step


DeadlineKey = tuple[DeadlineKind, str]


class Deadlines:
    """A priority queue of deadlines that move."""

    def __init__(self) -> None:
        """Start without any."""
        self._at: dict[DeadlineKey, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._heaped: dict[DeadlineKey, int] = {}

    def get(self, key: DeadlineKey) -> int | None:
        """Return when `key` is due, in ms of journal time, or None."""
        return self._at.get(key)

    def items(self) -> Iterable[tuple[DeadlineKey, int]]:
        """Return all deadlines, in no order that matters."""
        return self._at.items()

    def set(self, key: DeadlineKey, at_ms: int | None) -> None:
        """Set, move or (None) drop the deadline of `key`."""
        if at_ms is None:
            self._at.pop(key, None)
            return
        self._at[key] = at_ms
        heaped = self._heaped.get(key)
        if heaped is None or at_ms < heaped:
            self._heaped[key] = at_ms
            heapq.heappush(self._heap, (at_ms, key[0], key[1]))

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
                continue  # an earlier entry of the same key was pushed later and rules
            del self._heaped[key]
            if due_ms is not None:
                self.set(key, due_ms)
        return None
