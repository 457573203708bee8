"""Which jobs a list has, in which order, and where its pages begin."""

from __future__ import annotations

import re

from msgspec import Struct

from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.rpc.convert.checks import require
from rallypoint.server.rpc.views.times import to_unix_ms

Place = tuple[int, str]
"""Where a job stands in its list, ascending: for the order by job id, only that counts."""


class JobList(Struct, frozen=True):
    """Which jobs a client wants, and in which order."""

    phases: frozenset[Phase] = frozenset()
    """Empty: all."""
    outcomes: frozenset[Outcome | None] = frozenset()
    """None is that of a run that has not ended. Empty: all."""
    prefix: str = ""
    latest_first: bool = False
    """By the opening of their runs; otherwise by job id."""
    by_wall: bool = False
    """By times of day: those of other shards are compared with them, and journal time is not."""

    def has(self, job: Job) -> bool:
        """Return whether the list has this job."""
        return (
            (not self.phases or job.phase in self.phases)
            and (not self.outcomes or job.outcome in self.outcomes)
            and job.job_id.startswith(self.prefix)
        )

    def place(self, job: Job) -> Place:
        """Return where a job stands."""
        if not self.latest_first:
            return 0, job.job_id
        opened_ms = to_unix_ms(job.opened_ms) if self.by_wall else job.opened_ms
        return -opened_ms, job.job_id

    def write_token(self, place: Place) -> str:
        """Return the token of the page that begins after a place."""
        return f"latest:{-place[0]}:{place[1]}" if self.latest_first else f"id:{place[1]}"

    def read_token(self, token: str) -> Place | None:
        """Return the place that a page begins after; None for the first page.

        Raises:
            InvalidMessage: when it is no token of such a list.
        """
        if not token:
            return None
        match = _TOKEN.fullmatch(token)
        require(match is not None, "page_token", "is not the token of a page")
        assert match is not None
        is_same = (match["opened"] is not None) == self.latest_first
        require(is_same, "page_token", "is of a list with another order")
        return -int(match["opened"] or 0), match["job_id"]


_TOKEN = re.compile(r"(?:id|latest:(?P<opened>\d{1,16})):(?P<job_id>.+)", re.ASCII | re.DOTALL)
