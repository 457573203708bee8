"""Suspects the network when streams break because of it, not because of their nodes.

There are three signs: many streams of one job broke at once; streams of many jobs did; or the
coordinator itself stalled, so agents gave up their streams. In each case most nodes are alive and
about to reconnect; if they counted as lost, every round would stop for nothing. While the network
is suspected, a broken stream has a whole lease to reconnect: its job's or the coordinator's,
whichever is longer.

Many breaks in one job make the network suspect for that job alone. However many sessions a job
opens and drops, it slows the detection of failures in no other one.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

BREAKS_MIN = 3
"""Fewer breaks prove nothing: two nodes may die together."""
BROKEN_FRACTION_MIN = 0.25
"""Smallest fraction of a job's sessions whose streams must have broken, or of all jobs."""
WITHIN_MS = 1_000
"""The breaks count together when they come within this time."""
SLOT_MS = 100
"""Breaks are counted in slots of this length, which bounds the memory."""


class NetworkSuspicion(Struct, frozen=True):
    """The recent breaks of streams, and until when the network is suspected."""

    slots: tuple[tuple[int, int], ...] = ()
    """(start in ms, breaks since) of the slots of the last second, oldest first, at most 10."""
    suspected_until_ms: int = 0

    def is_active(self, now_ms: int) -> bool:
        """Return whether a broken stream counts as a fault of the network."""
        return now_ms < self.suspected_until_ms

    def breaks(self) -> int:
        """Return how many streams, or jobs, broke within the second before the latest break."""
        return sum(count for _, count in self.slots)

    def is_quiet(self, now_ms: int) -> bool:
        """Return whether nothing broke within the last second."""
        return all(start_ms <= now_ms - WITHIN_MS for start_ms, _ in self.slots)


def are_many(breaks: int, all: int) -> bool:
    """Return whether so many breaks of all are a fault of the network."""
    return breaks >= BREAKS_MIN and breaks >= BROKEN_FRACTION_MIN * all


def note_break(
    suspicion: NetworkSuspicion, all: int, now_ms: int, lease_ms: int
) -> NetworkSuspicion:
    """Return the suspicion after one more break.

    Args:
        suspicion: the suspicion so far, of a job or of the coordinator.
        all: all sessions of the job, or all jobs with sessions; the broken ones included.
        now_ms: when the stream broke, not before any earlier break.
        lease_ms: how long the suspicion lasts.
    """
    slot_ms = now_ms - now_ms % SLOT_MS
    kept = tuple(slot for slot in suspicion.slots if slot[0] > now_ms - WITHIN_MS)
    if kept and kept[-1][0] == slot_ms:
        kept = (*kept[:-1], (slot_ms, kept[-1][1] + 1))
    else:
        kept = (*kept, (slot_ms, 1))
    suspicion = replace(suspicion, slots=kept)
    breaks = suspicion.breaks()
    if are_many(breaks, all):
        return _suspect(suspicion, now_ms, lease_ms)
    return suspicion


def note_stall(
    suspicion: NetworkSuspicion, late_ms: int, now_ms: int, shortest_lease_ms: int, lease_ms: int
) -> NetworkSuspicion:
    """Return the suspicion after the coordinator stalled for `late_ms`.

    Agents give up a stream that is silent for their lease, counted from the last answer. Half of
    the shortest lease is enough, because a stall of up to a pulse may go unnoticed.

    Args:
        suspicion: as it was.
        late_ms: how long the coordinator stalled.
        now_ms: when it noticed.
        shortest_lease_ms: the shortest lease of any session.
        lease_ms: how long the suspicion lasts.
    """
    is_long = late_ms * 2 >= shortest_lease_ms
    return _suspect(suspicion, now_ms, lease_ms) if is_long else suspicion


def _suspect(suspicion: NetworkSuspicion, now_ms: int, lease_ms: int) -> NetworkSuspicion:
    until_ms = max(suspicion.suspected_until_ms, now_ms + lease_ms)
    return replace(suspicion, suspected_until_ms=until_ms)
