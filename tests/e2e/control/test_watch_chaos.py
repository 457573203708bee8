"""Watchers of jobs lose connections and coordinators, again and again.

The coordinators have no memory. So a watch of all jobs has one gap for each of them, which is
reported. All else is exact: nothing comes twice, and the last state of everything is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from rallypoint.v1 import node_service_pb2 as nodes_pb2
from rallypoint.v1 import node_service_pb2_grpc as nodes_grpc
from support.machines.proxy import Proxy
from support.processes.feed import LIMIT_S
from support.processes.job_watchers import AllJobs, JobWatcher, OneJob
from support.processes.world import NEW, World

SHORT = "short"
"""A job that runs and ends again and again."""


class Audience:
    """The watchers, behind a proxy."""

    def __init__(self, world: World, proxy: Proxy) -> None:
        self._world, self._proxy = world, proxy
        self.all = [
            AllJobs(f"all {number}", proxy.address, prefix)
            for number, prefix in enumerate(("", "", "job-", SHORT))
        ]
        self.long = OneJob("the long job", proxy.address, world.job_id)
        self.short = OneJob("the short job", proxy.address, SHORT)
        self._reasons = count()

    @property
    def watchers(self) -> list[JobWatcher]:
        return [*self.all, self.long, self.short]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let them all watch; afterwards none is left, also when the test has failed."""
        started: list[JobWatcher] = []
        try:
            for watcher in self.watchers:
                watcher.start()
                started.append(watcher)
            yield
        finally:
            for watcher in started:
                watcher.stop()
            for watcher in started:
                watcher.join()

    def change(self) -> None:
        """Change the long job."""
        reason = f"for the {next(self._reasons)}th time"
        nodes_grpc.NodeServiceStub(self._world.jobs.channel).CordonNode(
            nodes_pb2.CordonNodeRequest(
                job_id=self._world.job_id, node_name="elsewhere", reason=reason
            ),
            timeout=LIMIT_S,
        )

    def settle(self) -> None:
        """Wait until every watcher has seen everything: what it knows is what the list shows."""
        page = self._world.jobs.page()
        shown = {job.job_id: job.revision for job in page.jobs}
        for watcher in self.all:
            wanted = {one: at for one, at in shown.items() if one.startswith(watcher.prefix)}
            watcher.wait(lambda watcher=watcher, wanted=wanted: watcher.jobs == wanted)  # type: ignore[misc]
        self.long.wait(lambda: self.long.revision == shown[self._world.job_id])
        if SHORT in shown:
            self.short.wait(lambda: self.short.revision == shown[SHORT])

    def disturb(self) -> None:
        """Change something, cut every connection, and change something meanwhile."""
        self.change()
        self._proxy.cut()
        self.change()
        self.settle()

    def run_short_job(self) -> None:
        """Let the short job run once; cut every connection meanwhile."""
        ended = len(self.short.ended)
        agent = self._world.agent("s", f"--job-id={SHORT}", "--no-python", script=("true",))
        self._proxy.cut()
        assert agent.wait() == 0
        self.short.wait(lambda: len(self.short.ended) == ended + 1)
        self.settle()


@pytest.mark.parametrize(
    ("restarts", "cuts"), [(1, 4), pytest.param(10, 100, marks=pytest.mark.nightly)]
)
@pytest.mark.usefixtures("forgetful")
def test_every_state_that_lasts_is_seen_once(world: World, restarts: int, cuts: int) -> None:
    """Each end of a run is seen, no revision comes twice, and each lost memory is one gap."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    agent = world.agent("a")
    world.mailbox.workers(1)
    world.jobs.wait(world.job_id, lambda job: job.round.HasField("started_after"))  # and rests
    with Proxy(world.target) as proxy:
        audience = Audience(world, proxy)
        with audience.watching():
            audience.settle()
            for life in range(1, restarts + 2):
                audience.run_short_job()
                audience.run_short_job()
                for _ in range(cuts // (restarts + 1) + 1):
                    audience.disturb()
                if life <= restarts:
                    coordinator.kill()
                    coordinator = world.coordinator(port)
                    agent.wait_event("coordinator_reached_again", count=life)
            audience.settle()

    assert [None] * 6 == [watcher.failure for watcher in audience.watchers]
    assert [(restarts, restarts + 1)] * 4 == [(one.gaps, one.lists) for one in audience.all]
    lives = range(1, restarts + 2)
    assert [(life, run) for life in lives for run in (1, 2)] == audience.short.ended
    assert len(world.mailbox.started()) == 1
