"""The calls that watch events. An event wakes the calls that it concerns, once a turn.

What each gets it reads from the log, from where it stands. So there is no queue for a call, and one
that does not read delays none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from rallypoint.server.access.usage.quotas import HostQuota
from rallypoint.server.contract import limits
from rallypoint.server.contract.calls import LimitExceeded
from rallypoint.server.core.messages.effects import Effect, JobChanged
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.listeners import Listener


class EventWatch(Struct, eq=False):
    """A call that watches events."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has to look."""


class EventWaits(Listener):
    """The calls that watch events of all jobs."""

    KINDS = (JobChanged,)

    def __init__(self) -> None:
        """Begin without calls."""
        self._watches: dict[JobId | None, dict[EventWatch, None]] = {}
        self._hosts = HostQuota(Limit.EVENT_WATCHES_PER_HOST, "EVENT_WATCHES_PER_HOST_MAX")
        self.last = 0
        """Sequence of the latest event in the journal."""
        self._jobs: dict[JobId, None] = {}
        """With new events in this turn."""

    def note(self, effect: Effect, state: State) -> None:
        """Note a job with new events."""
        if isinstance(effect, JobChanged):
            self._jobs[effect.job_id] = None

    def end_turn(self, state: State) -> None:
        """Wake the calls that watch jobs with new events, or all jobs."""
        jobs, self._jobs = self._jobs, {}
        is_news, self.last = state.events.last > self.last, state.events.last
        if not is_news:
            return
        for subject in (*jobs, None):
            for watch in self._watches.get(subject, ()):
                watch.changed.set()

    @property
    def count(self) -> int:
        """How many calls watch."""
        return self._hosts.total

    def end(self) -> None:
        """Wake every call: no turn will come."""
        for watches in self._watches.values():
            for watch in watches:
                watch.changed.set()

    @contextmanager
    def watching(self, job_id: JobId | None, host: str) -> Iterator[EventWatch]:
        """Let a call watch a job, or (None) all jobs, while the context is open.

        Raises:
            LimitExceeded: when too many calls of the job or the host watch.
        """
        if len(self._watches.get(job_id, ())) >= limits.EVENT_WATCHES_PER_JOB_MAX:
            raise LimitExceeded(Limit.EVENT_WATCHES_PER_JOB, limits.EVENT_WATCHES_PER_JOB_MAX)
        with self._hosts.taking(host):
            watch = EventWatch()
            watches = self._watches.setdefault(job_id, {})
            watches[watch] = None
            try:
                yield watch
            finally:
                del watches[watch]
                if not watches:
                    del self._watches[job_id]
