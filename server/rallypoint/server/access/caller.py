"""Who calls, as far as the coordinator has found out."""

from __future__ import annotations

from enum import Enum
from fnmatch import fnmatchcase

from msgspec import Struct

from rallypoint.wire.access import Role


class Proof(Enum):
    """How a caller has proven who it is."""

    TOKEN = "token"
    CERTIFICATE = "certificate"
    WORKER_TOKEN = "worker token"


class WorkerRound(Struct, frozen=True):
    """The round that the token of a worker belongs to."""

    job_id: str
    run: int
    number: int


class Caller(Struct, frozen=True):
    """Who calls. A call may have several: a worker has the certificate of its node, too."""

    name: str
    """Of the entry in the auth file, or of the certificate."""
    roles: tuple[Role, ...]
    """Never empty."""
    proof: Proof
    jobs: tuple[str, ...] = ()
    """Patterns of the jobs that it is allowed, as of a shell; empty: all jobs."""
    expires_ms: int | None = None
    """When its token expires, as Unix time; None: never."""
    round: WorkerRound | None = None
    """Of a worker: what it may read ends soon after that. None: it is no worker."""

    def may_touch(self, job_id: str) -> bool:
        """Return whether it is allowed a job; an empty name stands for all jobs."""
        if not self.jobs:
            return True
        return bool(job_id) and any(fnmatchcase(job_id, pattern) for pattern in self.jobs)
