"""What the watchers of all jobs share: the summary of every job, encoded, as of one revision.

One view serves all watchers, so a change is rendered once, however many watch. The view is brought
up to date in slices while anyone waits for it, at most every `INTERVAL_S`, and rarer when many jobs
change. A watcher has no queue: it reads what is newer than the revision that it has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from msgspec import Struct

from rallypoint.server.api.jobs.lists import show_summary
from rallypoint.server.contract.pace import SLICE_S, Pace
from rallypoint.server.contract.pages import Room
from rallypoint.server.contract.waiting import Explain
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator, InputRefused
from rallypoint.v1 import job_service_pb2

INTERVAL_S = 0.05
"""Shortest time between two messages to one watcher."""
JOBS_PER_S_MAX = 4_000
"""Jobs that are rendered a second, on average. If all of the coordinator's change all the time,
watchers get each once a second; that takes a few percent of a core for each thousand."""
AGE_S_MAX = 1.0
"""Age from which on a summary is rendered again for a watcher that gets it first: it shows for how
long something has lasted."""


class _Shown(Struct):
    """A job as watchers get it."""

    revision: int
    shown_s: float
    """When it was rendered."""
    summary: bytes
    """Encoded as an answer with one job; one after another they make one answer."""


class News(Struct, frozen=True):
    """What a watcher gets at once."""

    answer: bytes
    """An encoded WatchJobsResponse."""
    revision: int
    """Everything up to it was sent."""
    is_empty: bool


class JobsView:
    """The summaries of all jobs, as of `revision`."""

    def __init__(self, coordinator: Coordinator, pace: Pace, explain: Explain) -> None:
        """Begin without jobs; all readers share `pace`; `explain` says what a job waits for."""
        self._coordinator = coordinator
        self._pace = pace
        self._explain = explain
        self.revision = 0
        self._compacted = 0
        self._epoch = 0
        self._jobs: dict[JobId, _Shown] = {}
        """In the order of their revisions."""
        self._deletions: dict[JobId, int] = {}
        self._lock = asyncio.Lock()
        self._next_s = 0.0
        """When it may be brought up to date again, in the loop's time."""

    async def update(self, prefix: str = "", after: int | None = None) -> None:
        """Bring the view up to date; share that with everyone who waits for it.

        Args:
            prefix: of the jobs that a new watcher gets.
            after: its revision; None: it is not new. What it gets is not older than AGE_S_MAX.
        """
        seen = self.revision
        if after is None:
            await asyncio.sleep(self._next_s - asyncio.get_running_loop().time())
        async with self._lock:
            if after is None and self.revision > seen:
                return  # another watcher has just done it
            began_s, count = asyncio.get_running_loop().time(), 0
            has_more = True
            while has_more:
                async with self._pace.turn():
                    rendered, has_more = await self._coordinator.read(self._take_changes)
                count += rendered
            stale = [] if after is None else self._find_stale(prefix, after)
            while stale:
                async with self._pace.turn():
                    count += await self._coordinator.read(
                        lambda state, now_ms: self._renew(stale, state, now_ms)
                    )
            self._next_s = began_s + max(INTERVAL_S, count / JOBS_PER_S_MAX)

    def _take_changes(self, state: State, now_ms: int) -> tuple[int, bool]:
        """Render changed jobs for the time of a slice; return how many, and whether there are more.

        They come in the order of their revisions, so the view is complete up to the latest.
        """
        ends_s, count = time.monotonic() + SLICE_S, 0
        changes = list(state.revisions.changed_after(self.revision))
        for job_id, revision in reversed(changes):
            self._render(state, job_id, now_ms)
            self.revision = revision
            count += 1
            if time.monotonic() >= ends_s:
                break
        has_more = count < len(changes)
        if not has_more:
            self.revision = state.revision
        self._deletions = dict(state.revisions.deletions)
        for job_id in self._jobs.keys() - state.jobs.keys():
            del self._jobs[job_id]
        self._compacted, self._epoch = state.compacted_revision, state.epoch
        return count, has_more

    def _render(self, state: State, job_id: JobId, now_ms: int) -> None:
        """Render a job again; it becomes the last one."""
        summary = self._encode(state, job_id, now_ms)
        revision, now_s = state.revision_of(job_id), time.monotonic()
        self._jobs.pop(job_id, None)
        self._jobs[job_id] = _Shown(revision, now_s, summary)

    def _encode(self, state: State, job_id: JobId, now_ms: int) -> bytes:
        job = show_summary(state, state.jobs[job_id], now_ms, self._explain)
        return job_service_pb2.WatchJobsResponse(jobs=[job]).SerializeToString()

    def _find_stale(self, prefix: str, after: int) -> list[JobId]:
        """Return the jobs after a revision whose summaries show times of long ago."""
        since_s = time.monotonic() - AGE_S_MAX
        return [job_id for job_id, shown in self._newer(prefix, after) if shown.shown_s < since_s]

    def _renew(self, stale: list[JobId], state: State, now_ms: int) -> int:
        """Render jobs for the time of a slice, and take them from `stale`; return how many."""
        ends_s, count = time.monotonic() + SLICE_S, 0
        while stale and time.monotonic() < ends_s:
            job_id = stale.pop()
            shown = self._jobs.get(job_id)
            if shown is not None and state.revisions.jobs.get(job_id) == shown.revision:
                summary = self._encode(state, job_id, now_ms)
                shown.shown_s, shown.summary = time.monotonic(), summary
                count += 1
        return count

    def _newer(self, prefix: str, after: int) -> Iterator[tuple[JobId, _Shown]]:
        """Return the jobs after a revision, the latest first."""
        for job_id, shown in reversed(self._jobs.items()):
            if shown.revision <= after:
                return
            if job_id.startswith(prefix):
                yield job_id, shown

    def check(self, after: int) -> None:
        """Check that deletions since a revision are remembered.

        Raises:
            InputRefused: when they are not, or the revision is not one of this coordinator.
        """
        if not self._compacted <= after <= self.revision:
            facts = (("oldest_revision", self._compacted), ("epoch", self._epoch))
            raise InputRefused(Refusal(RefusalKind.REVISION_COMPACTED, facts))

    def read(self, prefix: str, after: int, deleted_after: int) -> News:
        """Return what has changed since a revision, as much as fits into a message.

        Args:
            prefix: what the ids begin with.
            after: the watcher has all jobs up to this revision.
            deleted_after: it needs no earlier deletions; at least `after`, but for its first jobs.
        """
        parts: list[bytes] = []
        revision, room = self.revision, Room()
        newer = list(self._newer(prefix, after))
        for place, (_, shown) in enumerate(reversed(newer)):
            if not room.take(len(shown.summary)):
                revision = newer[len(newer) - place][1].revision
                break
            parts.append(shown.summary)
        deleted = [
            job_id
            for job_id, at in self._deletions.items()
            if max(after, deleted_after) < at <= revision and job_id.startswith(prefix)
        ]
        rest = job_service_pb2.WatchJobsResponse(deleted_job_ids=deleted, revision=revision)
        answer = b"".join((*parts, rest.SerializeToString()))
        return News(answer, revision, not parts and not deleted)
