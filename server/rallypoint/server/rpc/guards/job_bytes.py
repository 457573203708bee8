"""How many bytes a second a job may add to what holds up all others, such as the journal.

Each job has an allowance. Who may wait draws on one that is used up, and waits until it has grown
again; nothing is refused before that takes long. All others are refused for now.
"""

from __future__ import annotations

from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import JOBS_MAX
from rallypoint.server.rpc.calls import LimitExceeded
from rallypoint.server.rpc.guards.allowance import Allowance

AGAIN_S_MIN = 0.1
"""After that one that was refused may try again, if its job has used up nearly nothing more."""


class JobBytes:
    """The allowances of all jobs for one thing."""

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
        """The one that was used last is the last one; at most `JOBS_MAX`."""

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
        allowance = self._jobs.pop(job_id, None) or Allowance()
        self._jobs[job_id] = allowance
        if len(self._jobs) > JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]
        wait_s = max(0.0, -allowance.count(now_s, self._per_s, self._at_once) / self._per_s)
        if wait_s > patience_s:
            again_s = max(AGAIN_S_MIN, wait_s - patience_s)
            raise LimitExceeded(self._limit, self._per_s, again_s)
        allowance.left -= size
        return wait_s
