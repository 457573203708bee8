"""Simulated workers that tell their agent milestones, and what the timelines of rounds have to be.

Everything here is drawn from a separate generator, so the other choices of a seed stay as they are.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.core.held_round import Milestone
from rallypoint.agent.core.state import AgentState
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import RoundHeader, Timeline
from rallypoint.server.core.rounds.timelines import MARKS, find_disorder
from rallypoint.server.core.step import Transition
from sim.rules.rules import Checker
from sim.world.wire import header_of

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.process import Group, Process, RoundKey
    from sim.world.server import Server
    from sim.world.world import World

ACTIVE_PERCENT = 60
"""Of the seeds."""
DELAY_MS_MAX = 1_500
"""Until a worker has reached a milestone."""
WAY_MS_MAX = 400
"""From there until its report is sent."""
AGAIN_PERCENT = 30
"""Of the lines are written once more."""
WRONG_AGE_MS = 3_600_000
WRONG_PERCENT = 5
"""Of the reports are about the time before the round."""
NAMES = {Milestone.IMPORTED: "imported_ms", Milestone.PROCESS_GROUP: "process_group_ms"}


class Milestones:
    """All workers of a seed that report milestones."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = Random(f"{world.seed} milestones")
        self._is_active = self._rng.random() * 100 < ACTIVE_PERCENT
        self._told_rng = Random(f"{world.seed} marks")
        self.told: dict[tuple[RoundKey, str], set[int]] = {}
        """The ranks that have told their agent of a milestone, whether or not it was heard."""

    def begin(self, group: Group) -> None:
        """Let the workers of a round, all of which run, reach milestones."""
        if self._is_active:
            for process in group.living:
                for milestone in NAMES:
                    self._later(process, milestone)

    def _later(self, process: Process, milestone: Milestone) -> None:
        draw, clock = self._rng, self.world.clock
        way_ms = draw.randint(0, WAY_MS_MAX)
        delay_ms = draw.randint(0, DELAY_MS_MAX) + way_ms
        age_ms = WRONG_AGE_MS if draw.random() * 100 < WRONG_PERCENT else way_ms
        for _ in range(1 + (draw.random() * 100 < AGAIN_PERCENT)):
            clock.after(delay_ms, partial(self._tell, process, milestone, age_ms))
            delay_ms += draw.randint(0, DELAY_MS_MAX)

    def _tell(self, process: Process, milestone: Milestone, age_ms: int) -> None:
        """Tell the agent, which may be frozen; some lines are about no worker of the round."""
        world, order, agent = self.world, process.order, process.agent
        if not process.is_alive or world.is_calm:
            return
        round, local_rank = order.number, process.local_rank
        if self._told_rng.random() * 100 < WRONG_PERCENT:
            round, local_rank = self._told_rng.choice(((round - 1, 0), (round, 4_000)))
        else:
            key = (process.group.key, NAMES[milestone])
            self.told.setdefault(key, set()).add(process.rank)
        reached = agent_inputs.MilestoneReached(
            round, local_rank, milestone, world.clock.now_ms - age_ms
        )
        agent.take(partial(agent.post, reached))

    def are_told(self, key: RoundKey, name: str) -> bool:
        """Return whether all workers of a round have told their agents of a milestone."""
        return len(self.told.get((key, name), ())) == key[1].world_size


class TimelinesHold(Checker):
    """Marks are in order, never in the future, never changed, and made by the last worker."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._known: dict[tuple[int, JobId, RoundHeader], Timeline] = {}
        self._before: dict[JobId, Job] = {}

    def agent_stepped(self, agent: Agent, before: AgentState, after: AgentState) -> None:
        """A coordinator that has heard all agents of a round knows what all agents know."""
        job_id = agent.host.plan.job_id
        server = self.world.server_of(job_id)
        job = None if server is None else server.state.jobs.get(job_id)
        if job is None or job.round is None or job.phase is not Phase.RUNNING:
            return
        header, timeline = job.round.header, job.round.timeline
        for milestone, name in NAMES.items():
            if timeline is None or getattr(timeline, name) is not None:
                continue
            if self.world.progress.milestones.are_told((job_id, header), name):
                hosts = [host for host in self.world.hosts if host.plan.job_id == job_id]
                known = [_is_known(host.agent, header, milestone) for host in hosts]
                is_known = sum(known) == header.group_world_size
                self.require(not is_known, f"{job_id}: round {header.number} lacks {name}")

    def coordinator_hears(self, server: Server, input: inputs.Input) -> None:
        self._before = dict(server.state.jobs)

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        for job_id in transition.delta.jobs:
            was, job = self._before.get(job_id), server.state.jobs.get(job_id)
            if job is None or was is job:
                continue
            if job.round is not None and job.round.timeline is not None:
                self._check(server, job_id, job.round.header, job.round.timeline)
            elif was is not None and was.round is not None and job.history:
                header = was.round.header
                kept = next(one for one in job.history[::-1] if one.number == header.number)
                is_there = (kept.timeline is None) == (was.round.timeline is None)
                self.require(is_there, f"{job_id}: the history has {kept}")
                if kept.timeline is not None:  # the end may bring the last milestones with it
                    self._check(server, job_id, header, kept.timeline)

    def restored(self, before: Server, after: Server) -> None:
        for job_id, job in after.state.jobs.items():
            if job.round is not None and job.round.timeline is not None:
                self._check(after, job_id, job.round.header, job.round.timeline)

    def _check(
        self, server: Server, job_id: JobId, header: RoundHeader, timeline: Timeline
    ) -> None:
        key = (server.life, job_id, header)
        known = self._known.get(key)
        if known is timeline:
            return
        disorder = find_disorder(timeline)
        self.require(disorder is None, f"{job_id}: {disorder}")
        for name in MARKS:
            at_ms = getattr(timeline, name)
            was_ms = None if known is None else getattr(known, name)
            self.require(was_ms in (None, at_ms), f"{job_id}: {name} {was_ms} became {at_ms}")
            if at_ms is None or was_ms is not None:
                continue
            is_over = at_ms <= server.now_ms() or self.world.was_set_back
            self.require(is_over, f"{job_id}: {name} is {at_ms - server.now_ms()} ms ahead")
            if name in NAMES.values():
                told = self.world.progress.milestones.told.get(((job_id, header), name), set())
                ranks = set(range(header.world_size))
                self.require(ranks <= told, f"{job_id}: {name}, told by {told}")
        self._known[key] = timeline


def _is_known(agent: Agent | None, header: RoundHeader, milestone: Milestone) -> bool:
    """Return whether an agent has told the coordinator that its workers reached a milestone."""
    if agent is None or not agent.is_attached or agent.state.reports:
        return False
    held = agent.state.held
    if held is None or header_of(held.order) != header:
        return False
    return held.reached_ms(milestone) is not None
