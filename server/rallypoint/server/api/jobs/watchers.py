"""The watchers of jobs. All watchers of a job with the same view share one rendering of it.

A view is rendered at most once per change and interval, however many watch it: rendering and
encoding a large job takes milliseconds of the one event loop, which agents need too. Watchers that
do not read, and those beyond a limit, are refused or ended by the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from rallypoint.server.access.usage.quotas import HostQuota
from rallypoint.server.contract import limits
from rallypoint.server.contract.calls import LimitExceeded, is_set_within
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.listeners import Listener
from rallypoint.v1 import job_pb2

FULL = job_pb2.JOB_VIEW_FULL

INTERVAL_S = 0.05
"""Shortest time between two renderings of a job for its watchers. When a thousand nodes start at
once, one rendering can show their thousand changes."""
NODES_PER_S_MAX = 2_000
"""Nodes in the renderings of one job per second. A job of a thousand nodes is rendered twice a
second, which takes a few percent of a core."""


class Rendering(Struct, frozen=True):
    """A job as its watchers get it."""

    version: int
    """Version of the job that it shows."""
    revision: int
    """Revision of the job that it shows."""
    latest: int
    """Revision of the coordinator then."""
    answer: bytes
    """An encoded WatchJobResponse."""
    nodes: int
    is_final: bool
    """The run is over and every node knows."""
    run: int = 0
    """Number of the run that it shows; 0: there is none."""
    is_missing: bool = False
    """There is no such job."""
    unsure_s: float | None = None
    """The job is missing, but its agents may not have found this coordinator yet: how long to wait
    for them."""


Render = Callable[["Watched"], Awaitable[Rendering]]
"""Renders a job as of its current version; raises what the service ends the watch with."""


class Watched(Struct):
    """A job that is watched with one view."""

    job_id: JobId
    view: job_pb2.JobView.ValueType
    version: int = 0
    """Counts the changes of the job while it is watched."""
    watchers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set and replaced at every change."""
    rendering: Rendering | None = None
    """The latest one."""
    rendered_s: float = 0.0
    """When it began, in the loop's time."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the watcher that renders for all."""

    def note_change(self) -> None:
        """Wake the watchers."""
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()

    async def next(self, seen: Rendering | None, render: Render) -> Rendering:
        """Return a rendering that the watcher has not seen, when there is one.

        Args:
            seen: the one that it got last; None for its first, which shows the current version.
            render: renders the job.
        """
        while seen is not None and seen.version == self.version:
            if not await is_set_within(self.changed, seen.unsure_s):
                self.note_change()  # the job is rendered again
        if seen is not None:
            # Not under the lock: a new watcher need not wait.
            await asyncio.sleep(self._pause_s())
        async with self.lock:
            if self.rendering is None or not self._is_shareable(self.rendering, seen):
                self.rendered_s = asyncio.get_running_loop().time()
                self.rendering = await render(self)
            return self.rendering

    def _is_shareable(self, latest: Rendering, seen: Rendering | None) -> bool:
        """Return whether a watcher gets the latest rendering instead of a new one."""
        if latest.version == self.version:
            return True
        is_news = seen is not None and seen.version < latest.version
        return is_news and self._pause_s() > 0

    def _pause_s(self) -> float:
        """Return how long the job may not be rendered again, in seconds."""
        nodes = 0 if self.rendering is None else self.rendering.nodes
        interval_s = max(INTERVAL_S, nodes / NODES_PER_S_MAX)
        return max(0.0, self.rendered_s + interval_s - asyncio.get_running_loop().time())


class Watchers(Listener):
    """The watchers of all jobs."""

    def __init__(self) -> None:
        """Start without watchers."""
        self._watched: dict[JobId, dict[job_pb2.JobView.ValueType, Watched]] = {}
        self._hosts = HostQuota(Limit.WATCHERS_PER_HOST, "WATCHERS_PER_HOST_MAX")
        self._of_all = 0
        self.changed = asyncio.Event()
        """Set and replaced when any job changes."""

    @property
    def count(self) -> int:
        """How many there are."""
        return self._hosts.total

    @contextmanager
    def of_job(
        self, job_id: JobId, host: str, view: job_pb2.JobView.ValueType = FULL
    ) -> Iterator[Watched]:
        """Count a watcher of a job while the context is open.

        Args:
            job_id: the job, which need not exist.
            host: the watcher's host.
            view: how much of the job it gets.

        Raises:
            LimitExceeded: when the job or the host has as many as it may have.
        """
        views, most = self._watched.get(job_id, {}), limits.WATCHERS_PER_JOB_MAX
        if sum(watched.watchers for watched in views.values()) >= most:
            raise LimitExceeded(Limit.WATCHERS_PER_JOB, most)
        with self._hosts.taking(host):
            views = self._watched.setdefault(job_id, {})
            watched = views.setdefault(view, Watched(job_id, view))
            watched.watchers += 1
            try:
                yield watched
            finally:
                watched.watchers -= 1
                if not watched.watchers:
                    del views[view]
                if not views:
                    del self._watched[job_id]

    @contextmanager
    def of_all(self, host: str) -> Iterator[None]:
        """Count a watcher of all jobs while the context is open.

        Raises:
            LimitExceeded: when the coordinator or the host has as many as it may have.
        """
        if self._of_all >= limits.JOBS_WATCHERS_MAX:
            raise LimitExceeded(Limit.JOBS_WATCHERS, limits.JOBS_WATCHERS_MAX)
        with self._hosts.taking(host):
            self._of_all += 1
            try:
                yield
            finally:
                self._of_all -= 1

    def note_job(self, job_id: JobId, state: State) -> None:
        """Wake the watchers of one job."""
        for watched in self._watched.get(job_id, {}).values():
            watched.note_change()

    def end_turn(self, state: State) -> None:
        """Wake the watchers of all jobs."""
        self._note_any()

    def _note_any(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def end(self) -> None:
        """Wake every watcher: no turn will come."""
        self._note_any()
        for views in self._watched.values():
            for watched in views.values():
                watched.note_change()
