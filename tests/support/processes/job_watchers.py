"""Programs that watch jobs while connections and coordinators are lost all the time.

Each is a thread with a client. It notes what it learns, and that nothing comes twice.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable

from rallypoint.client import Client, errors
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from support.processes.feed import LIMIT_S

REVISIONS_OF_A_LIFE = 100_000
"""More than a test needs; a coordinator that starts a second later has revisions that are a million
higher."""


class JobWatcher(threading.Thread):
    """Something that watches jobs until it is stopped."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name=name)
        self._client = Client(address)
        self._stopping = False
        self.changed = threading.Condition()
        """Notified whenever it has learned something."""
        self.revision = 0
        """Of its latest answer."""
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping:
                self.watch()
        except errors.ClientClosed:
            pass
        except BaseException as error:  # noqa: BLE001  # the root of the thread; the test gets it
            self.failure = error
        finally:
            with self.changed:
                self.changed.notify_all()

    @abstractmethod
    def watch(self) -> None:
        """Watch until the coordinator or the test ends it."""

    def stop(self) -> None:
        """Let it end."""
        self._stopping = True
        self._client.close()

    def wait(self, is_reached: Callable[[], bool]) -> None:
        """Wait until the condition holds, which may change when this watcher learns something."""
        with self.changed:
            in_time = self.changed.wait_for(lambda: self.failure or is_reached(), LIMIT_S)
        assert self.failure is None, f"{self.name}: {self.failure!r}"
        assert in_time, f"{self.name} is at {self.revision}"


class OneJob(JobWatcher):
    """Watches one job over all its runs."""

    def __init__(self, name: str, address: str, job_id: str) -> None:
        super().__init__(name, address)
        self._job_id = job_id
        self.ended: list[tuple[int, int]] = []
        """The runs whose end it has seen, each with the life of the coordinator."""
        self._life = 0

    def watch(self) -> None:
        view = job_pb2.JOB_VIEW_SUMMARY
        with self._client.watch_job(
            self._job_id, view=view, after=self.revision, across_runs=True
        ) as answers:
            for answer in answers:
                self._take(answer)

    def _take(self, answer: jobs_pb2.WatchJobResponse) -> None:
        assert answer.revision > self.revision, f"{self.revision} and then {answer.revision}"
        summary = answer.summary
        with self.changed:
            self._life += answer.revision - self.revision > REVISIONS_OF_A_LIFE
            self.revision = answer.revision
            if summary.HasField("closed_at") and (self._life, summary.run) not in self.ended:
                self.ended.append((self._life, summary.run))
            self.changed.notify_all()


class AllJobs(JobWatcher):
    """Keeps a copy of the list of jobs: it lists them, and watches from there."""

    def __init__(self, name: str, address: str, prefix: str = "") -> None:
        super().__init__(name, address)
        self.prefix = prefix
        self.jobs: dict[str, int] = {}
        """Revision of each job."""
        self.gaps = 0
        """How often it learned that it may have missed something."""
        self.lists = 0

    def watch(self) -> None:
        listing = self._client.list_jobs(prefix=self.prefix)
        jobs = {job.job_id: job.revision for job in listing}
        with self.changed:
            self.jobs, self.revision = jobs, listing.first.revision
            self.lists += 1
            self.changed.notify_all()
        try:
            with self._client.watch_jobs(self.prefix, after=self.revision) as answers:
                for answer in answers:
                    self._take(answer)
        except errors.RevisionCompacted:
            self.gaps += 1

    def _take(self, answer: jobs_pb2.WatchJobsResponse) -> None:
        assert answer.revision >= self.revision, "an older answer"
        with self.changed:
            newest = self.revision
            for job in answer.jobs:
                # A list may show a job as of a later revision than that of its first page.
                assert job.revision > newest or job.revision == self.jobs.get(job.job_id)
                newest = job.revision
                self.jobs[job.job_id] = job.revision
            for job_id in answer.deleted_job_ids:
                del self.jobs[job_id]
            assert newest <= answer.revision
            self.revision = answer.revision
            self.changed.notify_all()
