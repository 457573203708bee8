"""The calls that watch events. An event wakes the calls that it concerns, once a turn.

What each gets it reads from the log, from where it stands. So there is no queue for a call, and one
that does not read delays none.
"""

from __future__ import annotations

import asyncio

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

    job_id: JobId | None
    """None: of all jobs."""
    host: str
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

    def enter(self, watch: EventWatch) -> None:
        """Let a call watch; `leave` afterwards.

        Raises:
            LimitExceeded: when too many calls of the job or the host watch.
        """
        watches = self._watches.get(watch.job_id, {})
        if len(watches) >= limits.EVENT_WATCHES_PER_JOB_MAX:
            raise LimitExceeded(Limit.EVENT_WATCHES_PER_JOB, limits.EVENT_WATCHES_PER_JOB_MAX)
        self._hosts.require(watch.host)
        self._hosts.take(watch.host)
        watches[watch] = None
        self._watches[watch.job_id] = watches

    def leave(self, watch: EventWatch) -> None:
        """Let a call watch no longer."""
        watches = self._watches[watch.job_id]
        del watches[watch]
        if not watches:
            del self._watches[watch.job_id]
        self._hosts.give_back(watch.host)
