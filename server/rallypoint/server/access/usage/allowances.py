"""What may be used now of something that grows again with time, up to a limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from rallypoint.server.contract.calls import LimitExceeded
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import JOBS_MAX

BEATS_PER_INTERVAL = 4
"""Heartbeats of one connection in each interval. An agent sends one; another after it has learned
of a new interval or has stood still."""
QUEUED_MAX = 128
"""Heartbeats that may come at once beside these, where a lease is that long: the network has let
go of them. What follows them, such as an exit, must not wait and be dated late."""
AGAIN_S_MIN = 0.1
"""After that one that was refused may try again, if its job has used up nearly nothing more."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Allowance(Struct):
    """It begins full."""

    left: float = math.inf
    """Below 0: how much more was used."""
    counted_s: float = 0.0
    """When `left` was right."""

    def count(self, now_s: float, per_s: float, most: float) -> float:
        """Let it grow until now; return how much may be used."""
        self.left = min(most, self.left + (now_s - self.counted_s) * per_s)
        self.counted_s = now_s
        return self.left


def find_latest(
    used: dict[_Key, _Value], key: _Key, make: Callable[[], _Value], most: int
) -> _Value:
    """Return the value of a key, which becomes the last one; forget the first one of too many."""
    value = used.pop(key, None) or make()
    used[key] = value
    if len(used) > most:
        del used[next(iter(used))]
    return value


class Beats(Allowance):
    """The heartbeats that a connection may send now. One that sends more slows only itself down."""

    def delay_s(self, now_s: float, interval_s: float, lease_s: float) -> float:
        """Count a heartbeat; return how long its sender has to wait, in seconds."""
        self._grow(now_s, interval_s, lease_s)
        self.left -= 1
        return max(0.0, -self.left) * interval_s / BEATS_PER_INTERVAL

    def allows(self, now_s: float, interval_s: float, lease_s: float) -> bool:
        """Return whether a heartbeat is not one too many; count it then."""
        self._grow(now_s, interval_s, lease_s)
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def _grow(self, now_s: float, interval_s: float, lease_s: float) -> None:
        most = BEATS_PER_INTERVAL + min(lease_s / interval_s, QUEUED_MAX)
        self.count(now_s, BEATS_PER_INTERVAL / interval_s, most)


class JobBytes:
    """How many bytes a second a job may add to what holds up all others, such as the journal.

    Who may wait draws on an allowance that is used up, and waits until it has grown again; nothing
    is refused before that takes long. All others are refused for now.
    """

    def __init__(self, limit: Limit, per_s: int, at_once: float) -> None:
        """Begin with every allowance full.

        Args:
            limit: as which a refusal names it.
            per_s: bytes by which an allowance grows in a second.
            at_once: bytes of a full one.
        """
        self._limit = limit
        self._per_s = per_s
        self._at_once = at_once
        self._jobs: dict[JobId, Allowance] = {}

    def use(self, job_id: JobId, size: int, now_s: float, patience_s: float = 0.0) -> float:
        """Use some of the allowance of a job; return how long to wait before that, in seconds.

        Args:
            job_id: the job, which exists.
            size: bytes that are used. They may be more than there are.
            now_s: monotonic time.
            patience_s: how long the caller may wait.

        Raises:
            LimitExceeded: when that is too short; then nothing is used.
        """
        allowance = find_latest(self._jobs, job_id, Allowance, JOBS_MAX)
        wait_s = max(0.0, -allowance.count(now_s, self._per_s, self._at_once) / self._per_s)
        if wait_s > patience_s:
            again_s = max(AGAIN_S_MIN, wait_s - patience_s)
            raise LimitExceeded(self._limit, self._per_s, again_s)
        allowance.left -= size
        return wait_s
