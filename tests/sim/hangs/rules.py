"""A rule about suspicions of hangs: they are right, and end with any progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.spec import HangAction
from rallypoint.server.core.step import Transition
from sim.rules.rules import Checker

if TYPE_CHECKING:
    from sim.world.server import Server
    from sim.world.world import World

LATE_MS = 30_000
"""A suspicion may be about what was true so long ago: word of progress is on its way from an agent
that is frozen, cut off, or not heard by a coordinator that stands still."""
_News = tuple[int, bool]
"""The round that an agent has reported about last, and whether its workers stood still."""


class HangsAreReal(Checker):
    """A round is suspected only while no worker makes progress, and stopped only if that is asked.

    * It is suspected only if every worker has stood still for `hang_after`.
    * Then every member that has not succeeded is there and has reported so, and the latest step is
      at least as old.
    * While it is suspected, no member has reported progress, and no worker a step.
    * It is stopped for a hang only if its specification says so.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._news: dict[tuple[int, SessionId], _News] = {}
        """What each process of the coordinator has heard last on streams that are open."""
        self._steps_ms: dict[tuple[int, JobId, int], int] = {}
        """When the latest step of each round was heard, by the world's clock."""
        self._suspected_ms: dict[tuple[int, JobId, int], int] = {}
        """When the present suspicion of each round began, by the world's clock."""
        self._jobs: dict[JobId, Job] = {}
        self._acknowledged = 0

    def coordinator_hears(self, server: Server, input: inputs.Input) -> None:
        self._jobs = dict(server.state.jobs)
        if isinstance(input, inputs.Progress):
            node = server.state.nodes.get(input.sender.session)
            self._acknowledged = 0 if node is None else node.acknowledged

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        if transition.refusal is None:
            self._hear(server, input)
        for job_id in transition.jobs:
            was, job = self._jobs.get(job_id), server.state.jobs.get(job_id)
            if job is not None:
                self._check(server, was, job)

    def _hear(self, server: Server, input: inputs.Input) -> None:
        match input:
            case inputs.Hello(identity=identity, held=held):
                news = (0, False)
                if held is not None:
                    news = held.header.number, held.still_ms is not None
                self._news[server.boot, identity.session] = news
            case inputs.Broken(sender=sender):
                self._news.pop((server.boot, sender.session), None)
            case inputs.Progress(sender=sender, round=number, still_ms=still_ms):
                if sender.sequence == self._acknowledged + 1:
                    news = number, still_ms is not None
                    self._news[server.boot, sender.session] = news
            case inputs.Progressed(claim=claim):
                key = server.life, claim.job_id, claim.round
                self._steps_ms[key] = self.world.clock.now_ms

    def _check(self, server: Server, was: Job | None, job: Job) -> None:
        round, now_ms = job.round, self.world.clock.now_ms
        if round is None or round.hang is None:
            return
        key = server.life, job.job_id, round.header.number
        old = None if was is None or was.round is None else was.round
        is_same = old is not None and old.header == round.header and old.hang is not None
        is_known = is_same and old.hang.suspected_ms == round.hang.suspected_ms  # type: ignore[union-attr]
        text = f"{job.job_id}, round {round.header.number}"
        if not is_known:
            self._suspected_ms[key] = now_ms
            self.world.coverage.counts["watched", "hangs"] += 1
            for process in self.world.group(job.job_id, round.header).living:
                since_ms = now_ms - LATE_MS
                has_stood = self.world.progress.standing.has_stood(
                    process, job.spec.hang_after_ms, since_ms
                )
                self.require(has_stood, f"{text}: rank {process.rank} makes progress")
        if job.phase is Phase.STOPPING:
            if was is not None and was.phase is Phase.RUNNING:
                may_stop = job.spec.hang_action is HangAction.RESTART
                self.require(may_stop and round.stop_reason is RoundReason.HUNG, f"{text} stops")
            return
        step_ms, suspected_ms = self._steps_ms.get(key), self._suspected_ms[key]
        is_old = step_ms is None or step_ms + job.spec.hang_after_ms <= suspected_ms
        self.require(is_old, f"{text}: a step at {step_ms} ms, suspected at {suspected_ms} ms")
        for node in server.state.nodes_of(job.job_id):
            if node.member and node.state is not NodeState.SUCCEEDED:
                news = self._news.get((server.boot, node.session))
                is_still = news == (round.header.number, True)
                if news is None and is_known:
                    is_still = True  # it is away
                self.require(is_still, f"{text}: {node.name} has reported {news}")


HANG_RULES: tuple[type[Checker], ...] = (HangsAreReal,)
