"""Simulated workers that report the steps of their training.

Everything here is drawn from a separate generator, so the other choices of a seed stay as they are.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from rallypoint.server.api.workers import to_progress
from rallypoint.server.shell.coordinator import InputRefused
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from sim.durable.milestones import Milestones
from sim.hangs.standing import Standing

if TYPE_CHECKING:
    from sim.world.process import Group, Process
    from sim.world.world import World

ACTIVE_PERCENT = 40
"""Of the seeds."""
STEP_MS_MAX = 2_500
"""Pause between two reports."""
STEPS_MAX = 3
"""Between two reports."""


class Progress:
    """All workers of a seed that report steps."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = Random(f"{world.seed} progress")
        self._is_active = self._rng.random() * 100 < ACTIVE_PERCENT
        self._steps: dict[str, int] = {}
        """The latest step of each job."""
        self.milestones = Milestones(world)
        self.standing = Standing(world)

    def begin(self, group: Group) -> None:
        """Let the first worker of a round, all of which run, report steps, and all milestones.

        At times they stand still.
        """
        self.milestones.begin(group)
        self.standing.begin(group)
        if self._is_active:
            self._later(next(process for process in group.living if process.rank == 0))

    def _later(self, process: Process) -> None:
        delay_ms = self._rng.randint(1, STEP_MS_MAX)
        self.world.clock.after(delay_ms, partial(self._report, process))

    def _report(self, process: Process) -> None:
        job_id, now_ms = process.host.plan.job_id, self.world.clock.now_ms
        server = self.world.server_of(job_id)
        is_cut = process.host.unreachable_until_ms > now_ms
        if not process.is_alive or self.world.is_calm:
            return
        if server is not None and server.stalled_until_ms <= now_ms and not is_cut:
            if server.writes.hold_up(partial(self._report, process)):
                return
            if not self.standing.may_step(process):
                self._later(process)
                return
            step = self._steps.get(job_id, 0) + self._rng.randint(1, STEPS_MAX)
            self._steps[job_id] = step
            request = worker_pb2.ReportProgressRequest(job_id=job_id, step=step)
            metadata = ((WORKER_TOKEN_KEY, process.order.worker_token),)
            try:
                claim = server.tokens.claim(job_id, metadata)
            except InputRefused:
                return
            server.request(to_progress(request, claim))
        self._later(process)
