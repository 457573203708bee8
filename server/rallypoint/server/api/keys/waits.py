"""The calls that wait for keys, and the answers to those that change them.

A change wakes only the calls that it concerns, once a turn. What each gets it reads from the state,
in another turn. So there is no queue for a call, and one that does not read delays none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, field

from rallypoint.server.access.usage.quotas import HostQuota
from rallypoint.server.contract import limits
from rallypoint.server.contract.calls import LimitExceeded
from rallypoint.server.core.messages.effects import Effect, WriteAnswered
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.keyspace import Answer, Change, Entry, Place
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.listeners import Listener


class KeyWait(Struct, eq=False):
    """A call that waits for keys to exist."""

    job_id: JobId
    missing: list[Place]
    """Keys that did not exist when it last looked. It waits for the last of them."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has to look."""
    is_waiting: bool = False
    """It counts among the calls that wait."""


class KeyWatch(Struct, eq=False):
    """A call that watches the keys with a prefix."""

    job_id: JobId
    prefix: Place
    host: str
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has to look."""
    first: int | None = None
    """Revision of the first change that it has not returned; None: there is none."""

    def note(self, revision: int) -> None:
        """Note a change of one of its keys."""
        self.first = revision if self.first is None else min(self.first, revision)
        self.changed.set()


class _Waits(Struct):
    """The calls that wait in one job."""

    keys: dict[Place, set[KeyWait]] = field(default_factory=dict)
    wait_count: int = 0
    prefixes: dict[Place, set[KeyWatch]] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)
    """How many of the prefixes have each length."""
    watch_count: int = 0
    round: tuple[int, int] = (0, 0)
    """The run and the round that runs, by the last turn; 0 when none does."""
    revision: int = 0
    """Of the latest change, since the first of these calls."""


class KeyWaits(Listener):
    """The calls that wait for keys of all jobs."""

    KINDS = (WriteAnswered,)
    WORKERS_WAIT = True

    def __init__(self) -> None:
        """Begin without calls."""
        self._jobs: dict[JobId, _Waits] = {}
        self._hosts = HostQuota(Limit.KEY_WATCHES_PER_HOST, "KEY_WATCHES_PER_HOST_MAX")
        self._answers: dict[str, Answer] = {}
        """Of the latest turn, by call."""

    def begin_turn(self, state: State) -> None:
        """Forget the answers of the turn before."""
        super().begin_turn(state)
        self._answers.clear()

    def note(self, effect: Effect, state: State) -> None:
        """Note an answer, and wake the calls that the changes concern."""
        if isinstance(effect, WriteAnswered):
            self._note_answer(effect, state)

    def _note_answer(self, answered: WriteAnswered, state: State) -> None:
        self._answers[answered.answer_id] = answered.answer
        waits = self._jobs.get(answered.job_id)
        if waits is None or not answered.changes:
            return
        waits.revision = answered.changes[-1].revision
        for prefix, revision in _prefixes_of(answered.changes, waits).items():
            for watch in waits.prefixes[prefix]:
                watch.note(revision)
        if waits.keys:
            space = state.keys.get(answered.job_id)
            # The same turn may have ended the round: then every call is woken.
            existing: Mapping[Place, Entry] = {} if space is None else space.entries
            for place in {change.place for change in answered.changes}:
                for wait in waits.keys.pop(place, ()):
                    _shorten(wait, waits, existing)

    def note_job(self, job_id: JobId, state: State) -> None:
        """Wake the calls in a job whose round has ended."""
        waits = self._jobs.get(job_id)
        if waits is not None and waits.round != _round_of(state, job_id):
            waits.round = _round_of(state, job_id)
            _wake(waits)

    def end(self) -> None:
        """Wake every call: no turn will come."""
        for waits in self._jobs.values():
            _wake(waits)

    def take_answer(self, answer_id: str) -> Answer:
        """Return the answer to a call of the latest turn."""
        return self._answers[answer_id]

    def latest(self, job_id: JobId) -> int:
        """Return the revision of the latest change of a job in which a call waits.

        0 if there was none since the first of these calls.
        """
        waits = self._jobs.get(job_id)
        return 0 if waits is None else waits.revision

    def wait(self, wait: KeyWait, state: State) -> None:
        """Let a call wait for the last of its missing keys; `remove` it afterwards.

        Raises:
            LimitExceeded: when too many calls of the job wait.
        """
        waits = self._open(wait.job_id, state)
        if waits.wait_count >= limits.KEY_WAITS_PER_JOB_MAX:
            most = limits.KEY_WAITS_PER_JOB_MAX
            raise LimitExceeded(Limit.KEY_CALLS, most)
        waits.wait_count += 1
        wait.is_waiting = True
        waits.keys.setdefault(wait.missing[-1], set()).add(wait)

    def remove(self, wait: KeyWait) -> None:
        """Let a call wait no longer, if it does."""
        if not wait.is_waiting:
            return
        wait.is_waiting = False
        waits = self._jobs[wait.job_id]
        waits.wait_count -= 1
        if wait.missing:
            waiting = waits.keys.get(wait.missing[-1], set())
            waiting.discard(wait)
            if not waiting:
                waits.keys.pop(wait.missing[-1], None)
        self._close(wait.job_id)

    def watch(self, watch: KeyWatch, state: State) -> None:
        """Let a call watch its prefix; `unwatch` it afterwards.

        Raises:
            LimitExceeded: when too many calls of the job or the host watch.
        """
        waits = self._open(watch.job_id, state)
        if waits.watch_count >= limits.KEY_WATCHES_PER_JOB_MAX:
            raise LimitExceeded(Limit.KEY_WATCHES_PER_JOB, limits.KEY_WATCHES_PER_JOB_MAX)
        self._hosts.require(watch.host)
        self._hosts.take(watch.host)
        waits.watch_count += 1
        if watch.prefix not in waits.prefixes:
            waits.prefixes[watch.prefix] = set()
            waits.lengths[len(watch.prefix.key)] += 1
        waits.prefixes[watch.prefix].add(watch)

    def unwatch(self, watch: KeyWatch) -> None:
        """Let a call watch no longer."""
        waits = self._jobs[watch.job_id]
        waits.watch_count -= 1
        watching = waits.prefixes[watch.prefix]
        watching.discard(watch)
        if not watching:
            del waits.prefixes[watch.prefix]
            waits.lengths[len(watch.prefix.key)] -= 1
            waits.lengths += Counter()  # drops the lengths that no prefix has
        self._hosts.give_back(watch.host)
        self._close(watch.job_id)

    def _open(self, job_id: JobId, state: State) -> _Waits:
        waits = self._jobs.get(job_id)
        if waits is None:
            waits = self._jobs[job_id] = _Waits(round=_round_of(state, job_id))
        return waits

    def _close(self, job_id: JobId) -> None:
        waits = self._jobs[job_id]
        if not waits.wait_count and not waits.watch_count:
            del self._jobs[job_id]


def _prefixes_of(changes: tuple[Change, ...], waits: _Waits) -> dict[Place, int]:
    """Return the prefixes that changed keys have, each with its first revision."""
    found: dict[Place, int] = {}
    for change in changes:
        round, key = change.place
        for length in waits.lengths:
            prefix = Place(round, key[:length])
            if length <= len(key) and prefix in waits.prefixes:
                found.setdefault(prefix, change.revision)
    return found


def _shorten(wait: KeyWait, waits: _Waits, existing: Mapping[Place, Entry]) -> None:
    """Take the keys that exist now from the end of a wait; wake it when none is left."""
    while wait.missing and wait.missing[-1] in existing:
        wait.missing.pop()
    if wait.missing:
        waits.keys.setdefault(wait.missing[-1], set()).add(wait)
    else:
        wait.changed.set()


def _wake(waits: _Waits) -> None:
    for waiting in waits.keys.values():
        for wait in waiting:
            wait.changed.set()
    for watching in waits.prefixes.values():
        for watch in watching:
            watch.changed.set()


def _round_of(state: State, job_id: JobId) -> tuple[int, int]:
    """Return the run and the round that runs; 0 for none."""
    job = state.jobs.get(job_id)
    if job is None or job.round is None or job.phase is not Phase.RUNNING:
        return 0, 0
    return job.run, job.round.header.number
