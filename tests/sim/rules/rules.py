"""What a rule is, and the rules that hold of every step.

Rules judge from outside, by what runs on the nodes and what was journalled: each is a checker of
its own, which hears of what happens and raises `Violation`. None of them asks the coordinator or an
agent whether it thinks that all is well.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from rallypoint.agent.core.desired import Desired, RunOrder
from rallypoint.agent.core.state import AgentState
from rallypoint.server.core.memory.replay import Memory
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.state.state import NO_CHANGES
from rallypoint.server.core.step import Transition
from rallypoint.v1.agent_service_pb2 import Finished
from support.core.decisions import Record

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.process import Process
    from sim.world.server import Server
    from sim.world.world import World


News = inputs.Hello | inputs.Report | inputs.Heartbeat
"""What agents say."""


class Violation(Exception):
    """A rule was broken."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Checker:
    """One rule. A checker overrides the events that it needs."""

    def __init__(self, world: World) -> None:
        self.world = world

    def require(self, holds: bool, text: str) -> None:
        """Raise unless it holds."""
        if not holds:
            raise Violation(type(self).__name__, text)

    def spawned(self, process: Process) -> None:
        """A worker process is about to exist."""

    def signalled(self, process: Process) -> None:
        """An agent is about to signal a worker process that lives."""

    def order_received(self, agent: Agent, order: RunOrder) -> None:
        """An agent begins a round."""

    def agent_stepped(self, agent: Agent, before: AgentState, after: AgentState) -> None:
        """An agent's core took a step."""

    def desired_received(self, agent: Agent, wanted: Desired) -> None:
        """An agent received a desired state."""

    def heard(self, server: Server, agent: Agent, input: News, sent_ms: int) -> None:
        """A message of an agent, sent at `sent_ms`, has arrived at the coordinator's host."""

    def outcome_received(self, agent: Agent, finished: Finished) -> None:
        """An agent received the outcome of its run."""

    def exited(self, agent: Agent) -> None:
        """An agent exits by itself."""

    def recorded(self, server: Server, record: Record) -> None:
        """The coordinator journalled a decision."""

    def coordinator_hears(self, server: Server, input: inputs.Input) -> None:
        """The coordinator's core is about to take a step."""

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        """The coordinator's core took a step."""

    def remembered(self, replayed: Memory, state: Memory) -> None:
        """The journal was replayed."""

    def shaken(self, server: Server, until_ms: int, jobs: Collection[JobId]) -> None:
        """Something is about to go wrong that no worker of these jobs should notice."""

    def crashed(self, server: Server) -> None:
        """A process of the coordinator has ended."""

    def restored(self, before: Server, after: Server) -> None:
        """A process has loaded the journal of the one before, and continues its life."""

    def joined(self, agent: Agent) -> None:
        """An agent was started on a host that had none."""

    def disturbed(self, job_id: JobId) -> None:
        """Something else went wrong that concerns a job."""


class ReplayIsMemory(Checker):
    """A replay of the journal gives the same memory as the state."""

    def remembered(self, replayed: Memory, state: Memory) -> None:
        if replayed != state:  # the text takes long
            self.require(False, f"\n  replayed {replayed}\n  state    {state}")


class OldNewsIsRefused(Checker):
    """A message of an old connection changes nothing, and neither does a refused one."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._is_old = False

    def coordinator_hears(self, server: Server, input: inputs.Input) -> None:
        self._is_old = False
        if isinstance(input, inputs.Senderless):
            return
        if isinstance(input, inputs.Hello):
            node = server.state.nodes.get(input.identity.session)
            self._is_old = node is not None and input.connection <= node.connection
        else:
            node = server.state.nodes.get(input.sender.session)
            self._is_old = node is None or input.sender.connection < node.connection

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        if self._is_old:
            self.require(transition.refusal is not None, f"took old news: {input}")
        if transition.refusal is not None:
            is_still = transition.delta == NO_CHANGES and not transition.records
            self.require(is_still, f"refused {input}, and yet changed {transition.delta}")


class AgentOnlyMovesOn(Checker):
    """The epoch, revision and round of an agent only grow."""

    def agent_stepped(self, agent: Agent, before: AgentState, after: AgentState) -> None:
        self.require(after.epoch >= before.epoch, f"{agent.host.name}: an older epoch")
        self.require(after.revision >= before.revision, f"{agent.host.name}: an older revision")
        self.require(after.last_round >= before.last_round, f"{agent.host.name}: an older round")
        self.require(
            after.acknowledged >= before.acknowledged, f"{agent.host.name}: unacknowledged"
        )
        if before.desired is not after.desired:
            is_new = (after.epoch, after.revision) >= (before.epoch, before.revision)
            self.require(is_new, f"{agent.host.name}: an older desired state")


class ReadersMissNothing(Checker):
    """A job that looks different after a step has a revision that no reader has seen."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seen = 0
        self._before: dict[JobId, Job] = {}

    def coordinator_hears(self, server: Server, input: inputs.Input) -> None:
        self._seen, self._before = server.state.revision, dict(server.state.jobs)

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        state, jobs = server.state, server.state.jobs
        self.require(state.revisions.jobs.keys() == jobs.keys(), "a job without a revision")
        for job_id in self._before.keys() | jobs.keys():
            if self._before.get(job_id) is not jobs.get(job_id):
                is_new = state.revision_of(job_id) > self._seen
                self.require(is_new, f"{job_id} changed, and its readers do not learn it")


STEP_RULES: tuple[type[Checker], ...] = (
    ReplayIsMemory,
    OldNewsIsRefused,
    AgentOnlyMovesOn,
    ReadersMissNothing,
)
