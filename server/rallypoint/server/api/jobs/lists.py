"""Lists of jobs: which jobs they have, in which order, and their pages."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.base.log import get_logger, new_incident
from rallypoint.server.api.jobs.job import summary_message
from rallypoint.server.contract.calls import require
from rallypoint.server.contract.pace import Pace
from rallypoint.server.contract.pages import read_page, read_token
from rallypoint.server.contract.waiting import Explain
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.state.clocks import Clocks
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import job_pb2, job_service_pb2

log = get_logger()

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

    def place(self, job: Job, clocks: Clocks) -> Place:
        """Return where a job stands."""
        if not self.latest_first:
            return 0, job.job_id
        distance_ms = clocks.find(job.opened_ms) if self.by_wall else None
        return -job.opened_ms - (distance_ms or 0), job.job_id

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
        opened, job_id = read_token(token, r"(?:id|latest:(\d{1,16})):(.+)")
        is_same = (opened is not None) == self.latest_first
        require(is_same, "page_token", "is of a list with another order")
        return -int(opened or 0), job_id


async def read_jobs(
    coordinator: Coordinator, pace: Pace, wanted: JobList, size: int, token: str, explain: Explain
) -> job_service_pb2.ListJobsResponse:
    """Return a page of jobs.

    Args:
        coordinator: read in several turns; each shows what is in the journal then.
        pace: this reader's and all others'.
        wanted: the list.
        size: most jobs, 1 or more.
        token: of the page; empty for the first one.
        explain: returns what a job waits for.

    Raises:
        InvalidMessage: when the token is of another list.
    """
    after = wanted.read_token(token)

    def begin(state: State, now_ms: int) -> tuple[list[Place], job_service_pb2.ListJobsResponse]:
        places = sorted(
            wanted.place(job, state.clocks) for job in state.jobs.values() if wanted.has(job)
        )
        page = job_service_pb2.ListJobsResponse(job_count=len(places), revision=state.revision)
        return [place for place in places if after is None or place > after], page

    def show(place: Place, state: State, now_ms: int) -> job_pb2.JobSummary | None:
        job = state.jobs.get(JobId(place[1]))
        if job is None or not wanted.has(job):
            return None
        return show_summary(state, job, now_ms, explain)

    async with pace.turn():
        places, page = await coordinator.read(begin)
        last = await read_page(coordinator, page.jobs, places, show, size)
    if last is not None:
        page.next_page_token = wanted.write_token(last)
    return page


def show_summary(state: State, job: Job, now_ms: int, explain: Explain) -> job_pb2.JobSummary:
    """Return a job for a list; only its id if a bug prevents more, so that the others are shown."""
    try:
        return summary_message(state, job, now_ms, explain)
    except Exception as error:  # one job must not hide the others
        incident = new_incident()
        log.error("rendering_failed", job_id=job.job_id, incident=incident, exc_info=error)
        return job_pb2.JobSummary(job_id=job.job_id, revision=state.revision_of(job.job_id))
