"""The calls that wait for keys, and the answers to those that change them.

A change wakes only the calls that it concerns. What each gets it reads from the state, in a turn,
from the first change on that woke it. So there is no queue for a call, and one that does not read
holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from rallypoint.server.core.keyspace.values import Answer, Place
from rallypoint.server.core.messages.effects import WriteAnswered
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.rpc.guards.limits import KEY_WAITS_PER_JOB_MAX
from rallypoint.server.rpc.guards.peers import LimitExceeded


class KeyWait(Struct, eq=False):
    """A call that waits for changes."""

    place: Place
    """The key, or the prefix of keys."""
    is_prefix: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has to look: a key has changed, or the job has."""
    first: int | None = None
    """Revision of the first change since it last looked; None: there was none."""

    def note(self, revision: int) -> None:
        """Note a change that it waits for."""
        if self.first is None:
            self.first = revision
        self.changed.set()

    def look(self) -> int | None:
        """Return `first`, and begin to wait again."""
        first, self.first = self.first, None
        self.changed.clear()
        return first


class _Waits(Struct):
    """The calls that wait in one job."""

    count: int = 0
    keys: dict[Place, set[KeyWait]] = field(default_factory=dict)
    prefixes: dict[Place, set[KeyWait]] = field(default_factory=dict)

    def add(self, wait: KeyWait) -> None:
        self._of(wait).setdefault(wait.place, set()).add(wait)

    def remove(self, wait: KeyWait) -> None:
        waiting = self._of(wait)[wait.place]
        waiting.discard(wait)
        if not waiting:
            del self._of(wait)[wait.place]

    def _of(self, wait: KeyWait) -> dict[Place, set[KeyWait]]:
        return self.prefixes if wait.is_prefix else self.keys


class KeyWaits:
    """The calls that wait for keys of all jobs."""

    def __init__(self) -> None:
        """Begin without calls."""
        self._jobs: dict[JobId, _Waits] = {}
        self._answers: dict[tuple[JobId, str], Answer] = {}
        """Of the latest turn, by job and request."""

    def begin_turn(self) -> None:
        """Forget the answers of the turn before."""
        self._answers.clear()

    def note(self, answered: WriteAnswered) -> None:
        """Note an answer, and wake the calls that the changes concern."""
        self._answers[answered.job_id, answered.request_id] = answered.answer
        waits = self._jobs.get(answered.job_id)
        if waits is None:
            return
        for change in answered.changes:
            place = change.place
            for wait in waits.keys.get(place, ()):
                wait.note(change.revision)
            for prefix, watching in waits.prefixes.items():
                if prefix.round == place.round and place.key.startswith(prefix.key):
                    for wait in watching:
                        wait.note(change.revision)

    def note_jobs(self, jobs: Iterable[JobId]) -> None:
        """Wake every call in these jobs: what it waits for may be over."""
        for job_id in jobs:
            waits = self._jobs.get(job_id)
            if waits is not None:
                for waiting in (*waits.keys.values(), *waits.prefixes.values()):
                    for wait in waiting:
                        wait.changed.set()

    def end_all(self) -> None:
        """Wake every call: no turn will come."""
        self.note_jobs(tuple(self._jobs))

    def take_answer(self, job_id: JobId, request_id: str) -> Answer:
        """Return the answer to a request of the latest turn."""
        return self._answers[job_id, request_id]

    @contextmanager
    def waiting(self, job_id: JobId, wait: KeyWait) -> Iterator[None]:
        """Wake the call at each change while the context is open.

        Raises:
            LimitExceeded: when too many calls of the job wait.
        """
        waits = self._jobs.setdefault(job_id, _Waits())
        if waits.count >= KEY_WAITS_PER_JOB_MAX:
            raise LimitExceeded("calls of one job that wait for keys", KEY_WAITS_PER_JOB_MAX)
        waits.count += 1
        waits.add(wait)
        try:
            yield
        finally:
            waits.count -= 1
            waits.remove(wait)
            if not waits.count:
                del self._jobs[job_id]

    def move(self, job_id: JobId, wait: KeyWait, place: Place) -> None:
        """Let a call wait for another key from now on."""
        waits = self._jobs[job_id]
        waits.remove(wait)
        wait.place = place
        waits.add(wait)
