"""Revisions of jobs: one counter over all jobs; it grows with every change that readers can see.

Every job that a step changes gets the next revision, and so does every job that it forgets. Readers
ask for what has changed since a revision. That is exact as long as the jobs that were forgotten
since then are remembered. Revisions are not journalled: a later coordinator counts on from a higher
number, because its epoch is higher.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from rallypoint.server.core.model.ids import JobId

PER_EPOCH = 1_000
"""An epoch is a time in ms, so a coordinator would have to change a million jobs a second to reach
the revisions of the next one."""
DELETIONS_MAX = 4_096
"""Forgotten jobs that are remembered, so that a reader who was away learns of them."""


class Revisions(Struct):
    """The revision of each job, and of the latest deletions."""

    latest: int = 0
    """Highest revision so far; 0: there is none."""
    jobs: dict[JobId, int] = field(default_factory=dict)
    """Of every job, ascending."""
    deletions: dict[JobId, int] = field(default_factory=dict)
    """Of jobs that do not exist any more, ascending; at most DELETIONS_MAX."""
    compacted: int = 0
    """Highest revision of a deletion that is not remembered; 0: all are."""

    def copy(self) -> Revisions:
        """Return a copy that does not change with this one."""
        return Revisions(self.latest, dict(self.jobs), dict(self.deletions), self.compacted)

    def change(self, job_id: JobId, revision: int, *, exists: bool) -> None:
        """Give a job, or its deletion, the next revision.

        Args:
            job_id: the job.
            revision: higher than all before.
            exists: whether there is such a job now.
        """
        self.latest = revision
        self.jobs.pop(job_id, None)
        self.deletions.pop(job_id, None)
        if exists:
            self.jobs[job_id] = revision
            return
        self.deletions[job_id] = revision
        if len(self.deletions) > DELETIONS_MAX:
            self.compacted = self.deletions.pop(next(iter(self.deletions)))

    def changed_after(self, revision: int) -> Iterator[tuple[JobId, int]]:
        """Return the jobs with a higher revision, the latest first; its cost is their number."""
        return _after(self.jobs, revision)

    def deleted_after(self, revision: int) -> Iterator[tuple[JobId, int]]:
        """Return the remembered deletions with a higher revision, the latest first."""
        return _after(self.deletions, revision)


def _after(revisions: dict[JobId, int], revision: int) -> Iterator[tuple[JobId, int]]:
    for job_id, at in reversed(revisions.items()):
        if at <= revision:
            return
        yield job_id, at
