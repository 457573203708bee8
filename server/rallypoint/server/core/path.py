"""Whether streams break because of what they share, and not because of the nodes behind them.

Two signs: many streams broke at once, or the coordinator itself was away for a while, so that its
agents gave their streams up. Either way most nodes are alive and on their way back, and calling
them lost would stop every round for nothing. While the path is suspected, a broken stream counts
like a silent one: it has a whole lease to come back, its job's or the coordinator's own, whichever
is longer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

BREAKS_MIN = 3
"""Fewer breaks say nothing: two nodes may die together."""
SHARE = 4
"""The breaks must be at least one in this many of all sessions: a quarter."""
WITHIN_MS = 1_000
SLOT_MS = 100
"""Breaks are counted in slots of this length, so what is kept has a limit."""


@dataclass(frozen=True, slots=True)
class Path:
    """What is known of the way between the coordinator and its agents."""

    slots: tuple[tuple[int, int], ...] = ()
    """(start in ms, breaks since) of the slots of the last second, oldest first, at most 10."""
    suspected_until_ms: int = 0

    def is_suspected(self, now_ms: int) -> bool:
        """Return whether a broken stream is to be taken for a fault of the path."""
        return now_ms < self.suspected_until_ms

    def breaks(self) -> int:
        """Return how many streams had broken within the second before the last break."""
        return sum(count for _, count in self.slots)


def note_break(path: Path, sessions: int, now_ms: int, lease_ms: int) -> Path:
    """Return the path after one more stream broke; suspected for a lease if that makes many.

    Args:
        path: as it was.
        sessions: all sessions, the broken ones included.
        now_ms: when the stream broke, not before any earlier break.
        lease_ms: how long the suspicion lasts.
    """
    slot_ms = now_ms - now_ms % SLOT_MS
    kept = tuple(slot for slot in path.slots if slot[0] > now_ms - WITHIN_MS)
    if kept and kept[-1][0] == slot_ms:
        kept = (*kept[:-1], (slot_ms, kept[-1][1] + 1))
    else:
        kept = (*kept, (slot_ms, 1))
    path = replace(path, slots=kept)
    breaks = path.breaks()
    if breaks >= BREAKS_MIN and breaks * SHARE >= sessions:
        return _suspect(path, now_ms, lease_ms)
    return path


def note_stall(
    path: Path, late_ms: int, now_ms: int, shortest_lease_ms: int, lease_ms: int
) -> Path:
    """Return the path after the coordinator was away for `late_ms`.

    It is suspected for `lease_ms` if that was long enough for agents to hear nothing for a lease of
    theirs, of which `shortest_lease_ms` is the shortest: they count from the last answer, and of a
    stall a pulse may have passed unnoticed.
    """
    return _suspect(path, now_ms, lease_ms) if late_ms * 2 >= shortest_lease_ms else path


def _suspect(path: Path, now_ms: int, lease_ms: int) -> Path:
    return replace(path, suspected_until_ms=max(path.suspected_until_ms, now_ms + lease_ms))
