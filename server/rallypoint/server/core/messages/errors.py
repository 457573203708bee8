"""The one error of the core: a bug of ours in one job."""

from __future__ import annotations

from rallypoint.server.core.model.ids import JobId


class BrokenInvariant(Exception):
    """A bug of ours in one job; no input may cause it."""

    def __init__(self, job_id: JobId, text: str) -> None:
        """Name the job and what is wrong with it."""
        super().__init__(f"{job_id}: {text}")
        self.job_id = job_id
        self.text = text
