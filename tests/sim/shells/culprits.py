"""A world in which two workers fail one after the other, and their agents make it hard to tell.

The agent of a worker may stand still meanwhile, a child may hold standard error, and the shutdown
timeout may be 0. Nothing else goes wrong, so the dates of failures are as exact as messages are
fast: the first worker to fail has to be named.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rallypoint.wire.durations import to_duration
from sim.shells.loop import NS
from sim.shells.plan import JobPlan, Rates
from sim.shells.workers import Group, Worker
from sim.shells.world import World

DELAY_S = 0.01
DATES_MS = 15
"""The time of two messages that take different ways, and of a turn of the coordinator."""
GAP_S_MAX = 0.3
STANDS_STILL_S_MAX = 1.0
HOLDS_SHARE = 0.5


class CulpritWorld(World):
    """One job without restarts, and two failures in its only round."""

    def plan(self) -> tuple[Rates, tuple[JobPlan, ...]]:
        rates, jobs = super().plan()
        rates = replace(
            rates,
            kinds=(),
            until_s=8.0,
            delay_s=DELAY_S,
            step_ms=0,
            journal_s=0.0,
            cannot_start=0,
            survives_kill=0,
            collateral=0.0,
            no_port=0,
            returns=0,
        )
        return rates, (self._plan_job(jobs[0]),)

    def _plan_job(self, job: JobPlan) -> JobPlan:
        nodes = tuple(replace(node, starts_s=0.0, workers=2) for node in job.nodes)
        spec, shutdown_ms = job.spec, self.rng.choice((0, 0, 200))
        spec.min_nodes = spec.max_nodes = len(nodes)
        spec.max_restarts = 0
        spec.shutdown_timeout.CopyFrom(to_duration(shutdown_ms))
        spec.ClearField("fence_after")
        spec.ClearField("lease")
        return replace(
            job, spec=spec, shutdown_ms=shutdown_ms, fence_ms=0, work_s=None, nodes=nodes
        )

    def holds_stderr(self) -> bool:
        return self.rng.random() < HOLDS_SHARE

    @property
    def dates_ms(self) -> int | None:
        return DATES_MS

    def join(self, group: Group) -> None:
        had_joined = group.has_joined
        super().join(group)
        if group.has_joined and not had_joined and not self.is_calm:
            first, second = self.rng.sample(group.living, 2)
            self.schedule.after(self.rng.uniform(0.2, 1.0), partial(self._fail, first, second))

    def _fail(self, first: Worker, second: Worker) -> None:
        """Let a worker fail whose agent may stand still, and soon another one."""
        self.rules.disturbed(first.group.job_id, STANDS_STILL_S_MAX)  # the report may be late
        if self.rng.random() < 0.5:
            first.owner.loop.freeze(int(self.rng.uniform(0.02, STANDS_STILL_S_MAX) * NS))
        self.end(first, 3, None)
        gap_s = self.rng.uniform(DATES_MS / 1000 + 0.001, GAP_S_MAX)
        self.schedule.after(gap_s, partial(self._fail_too, second))

    def _fail_too(self, worker: Worker) -> None:
        if not worker.is_signalled:
            self.end(worker, 4, None)
