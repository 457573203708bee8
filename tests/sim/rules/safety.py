"""Safety: passes every event to the rules that handle it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, TypeVar

from rallypoint.agent.core.desired import Desired, RunOrder
from rallypoint.agent.core.state import AgentState
from rallypoint.server.core.memory.replay import Memory
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.step import Transition
from rallypoint.v1.agent_service_pb2 import Finished
from sim.durable.milestones import TimelinesHold
from sim.durable.readers import EventsGoOn
from sim.durable.rules import DURABLE_RULES
from sim.events.journalled import EventsAreTheJournal
from sim.hangs.rules import HANG_RULES
from sim.rules.exits import EXIT_RULES
from sim.rules.health import HEALTH_RULES
from sim.rules.keys import KeysHold
from sim.rules.meetings import BarriersHold
from sim.rules.news import NEWS_RULES
from sim.rules.operations import OperationsHold
from sim.rules.overlap import OVERLAP_RULES
from sim.rules.rounds import ROUND_RULES
from sim.rules.rules import STEP_RULES, Checker, News
from sim.rules.runs import RUN_RULES
from sim.shards.rules import OwnersAreOne
from support.core.decisions import Record

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.process import Process
    from sim.world.server import Server
    from sim.world.world import World

C = TypeVar("C", bound=Checker)


class Safety:
    """All checkers, by the events that they handle."""

    def __init__(self, world: World) -> None:
        kinds = (
            *STEP_RULES,
            *EXIT_RULES,
            *ROUND_RULES,
            *OVERLAP_RULES,
            *RUN_RULES,
            *HEALTH_RULES,
            *NEWS_RULES,
            *HANG_RULES,
            BarriersHold,
            KeysHold,
            OperationsHold,
            EventsAreTheJournal,
            *DURABLE_RULES,
            EventsGoOn,
            TimelinesHold,
            OwnersAreOne,
        )
        self.checkers = tuple(kind(world) for kind in kinds)
        self._listeners = {
            name: tuple(
                checker
                for checker in self.checkers
                if getattr(type(checker), name) is not getattr(Checker, name)
            )
            for name in _HAPPENINGS
        }

    def find(self, kind: type[C]) -> C:
        """Return the rule of a kind."""
        return next(one for one in self.checkers if isinstance(one, kind))

    def spawned(self, process: Process) -> None:
        for checker in self._listeners["spawned"]:
            checker.spawned(process)

    def signalled(self, process: Process) -> None:
        for checker in self._listeners["signalled"]:
            checker.signalled(process)

    def order_received(self, agent: Agent, order: RunOrder) -> None:
        for checker in self._listeners["order_received"]:
            checker.order_received(agent, order)

    def agent_stepped(self, agent: Agent, before: AgentState, after: AgentState) -> None:
        for checker in self._listeners["agent_stepped"]:
            checker.agent_stepped(agent, before, after)

    def desired_received(self, agent: Agent, wanted: Desired) -> None:
        for checker in self._listeners["desired_received"]:
            checker.desired_received(agent, wanted)

    def heard(self, server: Server, agent: Agent, input: News, sent_ms: int) -> None:
        for checker in self._listeners["heard"]:
            checker.heard(server, agent, input, sent_ms)

    def outcome_received(self, agent: Agent, finished: Finished) -> None:
        for checker in self._listeners["outcome_received"]:
            checker.outcome_received(agent, finished)

    def exited(self, agent: Agent) -> None:
        for checker in self._listeners["exited"]:
            checker.exited(agent)

    def recorded(self, server: Server, record: Record) -> None:
        for checker in self._listeners["recorded"]:
            checker.recorded(server, record)

    def coordinator_hears(self, server: Server, input: inputs.Input) -> None:
        for checker in self._listeners["coordinator_hears"]:
            checker.coordinator_hears(server, input)

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        for checker in self._listeners["coordinator_stepped"]:
            checker.coordinator_stepped(server, input, transition)

    def remembered(self, replayed: Memory, state: Memory) -> None:
        for checker in self._listeners["remembered"]:
            checker.remembered(replayed, state)

    def shaken(self, server: Server, until_ms: int, jobs: Collection[JobId]) -> None:
        for checker in self._listeners["shaken"]:
            checker.shaken(server, until_ms, jobs)

    def crashed(self, server: Server) -> None:
        for checker in self._listeners["crashed"]:
            checker.crashed(server)

    def restored(self, before: Server, after: Server) -> None:
        for checker in self._listeners["restored"]:
            checker.restored(before, after)

    def joined(self, agent: Agent) -> None:
        for checker in self._listeners["joined"]:
            checker.joined(agent)

    def disturbed(self, job_id: JobId) -> None:
        for checker in self._listeners["disturbed"]:
            checker.disturbed(job_id)


_HAPPENINGS = tuple(
    name for name in vars(Checker) if not name.startswith("_") and name != "require"
)
