"""Rules for how an agent ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.agent.core.leaving.away import ALONE_MS
from rallypoint.agent.core.reports import GoodbyeKind
from rallypoint.agent.core.state import AgentState, Ending
from rallypoint.base.exit_codes import (
    EXIT_CANCELLED,
    EXIT_FAILED,
    EXIT_NO_REQUEUE,
    EXIT_SIGNAL_BASE,
    EXIT_UNREACHABLE,
)
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.verdict import Consequence
from rallypoint.v1.agent_service_pb2 import Finished
from sim.rules.rules import Checker
from support.core.decisions import DrainRequested, Record, RunClosed

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.server import Server
    from sim.world.world import World

SIGTERM = 15


class ExitsClean(Checker):
    """An agent that exits leaves no process behind, and its exit code says why it ends.

    The code is judged when the agent decides to end. What happened to it first allows one code:

    * a signal: 143, for SIGTERM is the only one here;
    * the outcome of its run: 0 for a success, 94 if it was cancelled, 93 if it failed and must not
      be queued again, else 1, by the journal of the coordinator that sent it;
    * a request of an operator to drain it: 0;
    * a refusal for good: the code of the refusal; or, if its workers have all exited with 0, 0
      where no other node was in their round, else 75: the outcome is unknown;
    * no session for the coordinator timeout: 75; or 0 if its workers have all exited with 0, and no
      other node was in their round.

    A drain takes time. What happens meanwhile may end the agent first, and then sets the code.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._closed: dict[tuple[int, JobId, int], int] = {}
        """The exit code that each outcome means, by the journal of each life."""
        self._told: dict[str, int] = {}
        """The exit code of the first outcome that each agent received."""

        self._drained: set[SessionId] = set()
        """Agents that operators have drained, by the journal of any life."""

    def recorded(self, server: Server, record: Record) -> None:
        if isinstance(record, DrainRequested):
            self._drained.add(record.request.session)
        if not isinstance(record, RunClosed):
            return
        code = EXIT_FAILED
        if record.outcome is Outcome.SUCCEEDED:
            code = 0
        elif record.outcome is Outcome.CANCELLED:
            code = EXIT_CANCELLED
        elif record.verdict is not None and record.verdict.consequence is Consequence.NO_REQUEUE:
            code = EXIT_NO_REQUEUE
        self._closed[(server.life, record.job_id, record.run)] = code

    def outcome_received(self, agent: Agent, finished: Finished) -> None:
        assert agent.link.stream is not None
        key = (agent.link.stream.life, agent.host.plan.job_id, agent.run)
        self.require(key in self._closed, f"{agent.host.name} receives an outcome of {key}")
        self._told.setdefault(agent.session, self._closed[key])

    def agent_stepped(self, agent: Agent, before: AgentState, after: AgentState) -> None:
        ending = after.ending
        if before.ending is None and ending is not None:
            # The exit of the last worker may be what ends the agent: one that was frozen has been
            # away for long enough by then.
            latest = before if after.held is None else after
            self.require(self._is_right(agent, latest, ending), f"{agent.host.name}: {ending}")
            is_late = agent.session in self._told and ending.kind is not GoodbyeKind.FINISHED
            self.require(not is_late, f"{agent.host.name} has an outcome, and yet {ending}")

    def _is_right(self, agent: Agent, state: AgentState, ending: Ending) -> bool:
        code = ending.exit_code
        match ending.kind:
            case GoodbyeKind.SIGNAL:
                return agent.was_terminated and code == EXIT_SIGNAL_BASE + SIGTERM
            case GoodbyeKind.DRAINED:
                return agent.session in self._drained and code == 0
            case GoodbyeKind.RELEASED:
                # One whose workers have succeeded beside others does not know the outcome.
                if agent.dismissal is None:
                    return False
                is_unknown = self._has_succeeded(state) and not self._was_alone(state)
                return code == (EXIT_UNREACHABLE if is_unknown else agent.dismissal.exit_code)
            case GoodbyeKind.ERROR:
                timeout_ms = agent.host.plan.coordinator_timeout_ms
                return code == EXIT_UNREACHABLE and self._is_away(agent, state, timeout_ms)
            case GoodbyeKind.FINISHED if agent.session in self._told:
                return code == self._told[agent.session]
            case GoodbyeKind.FINISHED:
                was_drained = agent.session in self._drained or agent.was_terminated
                return code == 0 and (was_drained or self._is_alone(agent, state))

    def _is_away(self, agent: Agent, state: AgentState, least_ms: int) -> bool:
        """Return whether an agent has had no session for so long."""
        since_ms = state.away_since_ms
        return since_ms is not None and agent.now_ms() - since_ms >= least_ms

    def _is_alone(self, agent: Agent, state: AgentState) -> bool:
        """Return whether an agent knows the outcome of a round without other nodes.

        It tries to report it, unless it is refused for good.
        """
        is_refused = agent.dismissal is not None
        has_tried = is_refused or self._is_away(agent, state, ALONE_MS)
        return self._was_alone(state) and self._has_succeeded(state) and has_tried

    def _was_alone(self, state: AgentState) -> bool:
        """Return whether the latest round of an agent had no other nodes."""
        return state.held is not None and state.held.order.header.group_world_size == 1

    def _has_succeeded(self, state: AgentState) -> bool:
        """Return whether all workers of an agent have exited with 0."""
        workers = () if state.held is None else state.held.workers
        codes = {None if worker.exit is None else worker.exit.exit_code for worker in workers}
        return codes == {0}

    def exited(self, agent: Agent) -> None:
        left = [process.pid for process in agent.host.processes]
        self.require(not left, f"{agent.host.name} exits, and {left} live on")
        ending = agent.state.ending
        is_decided = ending is not None and agent.exit_code == ending.exit_code
        self.require(is_decided, f"{agent.host.name} exits {agent.exit_code} and not as {ending}")


EXIT_RULES: tuple[type[Checker], ...] = (ExitsClean,)
