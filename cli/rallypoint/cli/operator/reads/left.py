"""Reads what a coordinator has left of its jobs, in place of a client, when nothing listens."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from google.protobuf.message import DecodeError
from msgspec import Struct

from rallypoint.base.names import Unresolved, find
from rallypoint.base.user_folders import find_host_name
from rallypoint.base.values import describe_ms
from rallypoint.cli.operator.doctor.network import is_own
from rallypoint.client.errors import UnknownJob
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.wire.last_runs import LeftJob, read


class LeftJobs(Struct, frozen=True):
    """The jobs that coordinators at one address have left, with the reads of a client."""

    ages_s: dict[str, float]
    """How long ago each job has ended; of one that had not, how long ago it was left."""
    jobs: dict[str, job_pb2.Job]
    """By name, the latest of each; the one that ended last comes first."""
    kept: dict[str, LeftJob]
    """The same as they were read."""

    def get_job(self, job_id: str, *, view: int = 0) -> jobs_pb2.GetJobResponse:
        """Return a job, with its ages as of now.

        Raises:
            UnknownJob: none has left it.
        """
        if job_id not in self.jobs:
            raise UnknownJob(f"there is no job {job_id}", job_id=job_id)
        return jobs_pb2.GetJobResponse(job=self.jobs[job_id])

    def list_runs(self, job_id: str) -> Iterable[job_pb2.RunSummary]:
        """Return the runs of a job, the latest first."""
        return jobs_pb2.ListRunsResponse.FromString(self.kept[job_id].runs).runs

    def list_jobs(
        self, *, phases: Iterable[job_pb2.JobPhase.ValueType], prefix: str
    ) -> Iterable[job_pb2.JobSummary]:
        """Return the jobs in one of these phases, and with this prefix."""
        wanted = set(phases)
        for job_id, one in self.kept.items():
            summary = job_pb2.JobSummary.FromString(one.summary)
            summary.age.CopyFrom(self.jobs[job_id].age)
            if job_id.startswith(prefix) and (not wanted or summary.phase in wanted):
                yield summary

    def list_events(
        self, job_id: str, *, kinds: Iterable[events_pb2.EventKind.ValueType]
    ) -> list[events_pb2.Event]:
        """Return the events of a job, or of all, the oldest first."""
        wanted = set(kinds)
        pages = [self.kept[job_id]] if job_id else self.kept.values()
        events = [
            event
            for page in pages
            for event in events_pb2.ListEventsResponse.FromString(page.events).events
            if not wanted or _kind_of(event) in wanted
        ]
        return sorted(events, key=lambda event: event.time.ToNanoseconds())

    def describe(self, job_id: str) -> str:
        """Return what a person is shown in place of an answer."""
        name = job_id or next(iter(self.jobs))
        ago = describe_ms(int(self.ages_s[name] * 1000))
        if self.jobs[name].phase != job_pb2.JOB_PHASE_CLOSED:
            return f"this is what it left of job {name}, which had not ended, {ago} ago"
        return f"this is what it left when job {name} ended {ago} ago"


def _kind_of(event: events_pb2.Event) -> int:
    return events_pb2.EventKind.Value(f"EVENT_KIND_{(event.WhichOneof('detail') or '').upper()}")


def find_left(endpoints: str) -> LeftJobs:
    """Return what coordinators at these addresses have left, as far as this user has it."""
    ages_s, jobs, kept = dict[str, float](), dict[str, job_pb2.Job](), dict[str, LeftJob]()
    now_s = time.time()  # noqa: TID251  # an age that people read
    for endpoint in endpoints.split(","):
        host, _, port = endpoint.rpartition(":")
        for left in read(int(port), partial(_is_same, host.strip("[]"))):
            for one in left.jobs:
                try:
                    job = job_pb2.Job.FromString(one.job)
                except DecodeError:
                    continue
                if job.job_id in jobs:
                    continue  # of a later coordinator
                _grow_older(job, max(0.0, now_s - left.left_s))
                ended = job.closed_at if job.HasField("closed_at") else None
                ended_s = left.left_s if ended is None else ended.ToMilliseconds() / 1000
                ages_s[job.job_id] = max(0.0, now_s - ended_s)
                jobs[job.job_id], kept[job.job_id] = job, one
    return LeftJobs(ages_s, jobs, kept)


def _is_same(host: str, kept: str) -> bool:
    """Return whether an address is that of a host, by its name in the file."""
    if kept == find_host_name() and _leads_here(host):
        return True
    return kept.partition(".")[0] == host.partition(".")[0]


def _leads_here(host: str) -> bool:
    """Return whether an address of a host is one of this host."""
    try:
        return any(map(is_own, find(host).addresses))
    except Unresolved:
        return False


def _grow_older(job: job_pb2.Job, by_s: float) -> None:
    """Let the ages in a job be those of now."""
    for age in (job.age, *(departure.age for departure in job.departures)):
        age.FromMilliseconds(age.ToMilliseconds() + int(by_s * 1000))
