"""Rules for nodes that are quarantined or cordoned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.agent.core.state import AgentState
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import JobChanged
from rallypoint.server.core.messages.records import JobForgotten
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.rounds.fences import SLACK_MS as FENCE_SLACK_MS
from rallypoint.server.core.rounds.waits import LAST_CALL_FACTOR
from rallypoint.server.core.step import Transition
from rallypoint.server.core.verdicts.policy import BACKOFF_MS_MAX
from sim.rules.rules import Checker
from support.core.decisions import (
    JobUpdated,
    NodeHealthChanged,
    Record,
    RoundSealed,
    RoundSettled,
    RunClosed,
    RunOpened,
)

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.server import Server
    from sim.world.world import World

SLACK_MS = 1_000
"""How long a coordinator may take to seal a round, besides all pauses."""
_TAKEN_OVER = frozenset({"round_adopted", "round_found_incomplete"})
"""Reasons of rounds that were running already when a node was kept out."""


class _SetAside(Checker):
    """Knows which nodes are kept out, from operators' requests and from the journal."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._cordoned: set[tuple[int, JobId, NodeName]] = set()
        self._quarantined: dict[tuple[int, JobId, NodeName], int] = {}
        """When the quarantine ends, in journal time."""
        self._specs: dict[tuple[int, JobId], JobSpec] = {}
        """Of the runs, by the journal of each life."""
        self._placed: dict[tuple[int, JobId, NodeName], int] = {}
        """The latest round with a place for each node, by the same."""

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        for record in transition.records:
            if isinstance(record, RunOpened | JobUpdated):
                self._specs[(server.life, record.job_id)] = record.spec
            elif isinstance(record, RoundSealed):
                for member in record.members:
                    key = (server.life, record.job_id, member.name)
                    self._placed[key] = record.header.number
            elif isinstance(record, NodeHealthChanged):
                key = (server.life, record.job_id, record.health.name)
                self._quarantined[key] = record.health.quarantined_until_ms
            elif isinstance(record, JobForgotten):
                self._forget(record.job_id)
        counts = any(isinstance(one, NodeHealthChanged) for one in transition.records)
        if isinstance(input, inputs.Cordon) and counts:
            self._cordoned.add((server.life, input.job_id, input.name))
        elif isinstance(input, inputs.Uncordon) and counts:
            self._cordoned.discard((server.life, input.job_id, input.name))
        self.look(server, transition)

    def _forget(self, job_id: JobId) -> None:
        self._cordoned = {key for key in self._cordoned if key[1] != job_id}
        for key in [key for key in self._quarantined if key[1] == job_id]:
            del self._quarantined[key]

    def look(self, server: Server, transition: Transition) -> None:
        """Check a step."""

    def is_cordoned(self, server: Server, job_id: JobId, name: NodeName) -> bool:
        """Return whether a node is cordoned."""
        return (server.life, job_id, name) in self._cordoned

    def is_quarantined(self, server: Server, job_id: JobId, name: NodeName) -> bool:
        """Return whether a node is quarantined now."""
        return self._quarantined.get((server.life, job_id, name), 0) > server.now_ms()

    def ready(self, server: Server, job_id: JobId) -> list[Agent]:
        """Return the agents whose nodes could be members of a round now."""
        agents = [
            host.agent
            for host in self.world.hosts
            if host.plan.job_id == job_id and host.agent is not None and host.agent.is_attached
        ]
        return [
            agent
            for agent in agents
            if not agent.was_asked
            and _is_idle(agent.state)
            and agent.state.last_round >= self._placed.get((server.life, job_id, agent.name), 0)
            and not self.is_cordoned(server, job_id, agent.name)
        ]


class SetAsideHolds(_SetAside):
    """No round begins with a cordoned node, nor with a quarantined one that it does not need."""

    def look(self, server: Server, transition: Transition) -> None:
        reasons = {effect.reason for effect in transition.effects if isinstance(effect, JobChanged)}
        if reasons & _TAKEN_OVER:
            return
        for record in transition.records:
            if isinstance(record, RoundSealed):
                self._judge(server, record)

    def _judge(self, server: Server, record: RoundSealed) -> None:
        job_id = record.job_id
        names = [member.name for member in record.members]
        cordoned = [name for name in names if self.is_cordoned(server, job_id, name)]
        self.require(not cordoned, f"round {record.header.number} has {cordoned}, cordoned")
        sick = [name for name in names if self.is_quarantined(server, job_id, name)]
        if sick:
            least = self._specs[(server.life, job_id)].min_nodes
            self.require(len(names) <= least, f"{sick} are quarantined among {names}")
            spare = [
                agent.name
                for agent in self.ready(server, job_id)
                if agent.name not in names
                and not self.is_quarantined(server, job_id, agent.name)
                and not server.is_missed(agent.session)  # its messages may be a lease late
            ]
            self.require(not spare, f"{sick} are quarantined while {spare} are to spare")


class QuarantineYields(_SetAside):
    """No quarantine keeps a job from a round that it could have.

    That is so if the job has an open run, but no round, although min_nodes agents are ready: they
    are connected, hold nothing, await no order, have nothing left to report, do not drain and are
    not cordoned. It may last as long as the pauses of the specification, and while a stream has
    just ended, for its agent may return.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._forming: dict[tuple[int, JobId], JobSpec] = {}
        """Open runs without a round, by the journal of each life."""
        self._since: dict[tuple[int, JobId], int] = {}
        """Since when a round could have begun, in journal time."""

    def recorded(self, server: Server, record: Record) -> None:
        match record:
            case RunOpened(job_id=job_id, spec=spec):
                self._forming[(server.life, job_id)] = spec
            case JobUpdated(job_id=job_id, spec=spec):
                if (server.life, job_id) in self._forming:
                    self._forming[(server.life, job_id)] = spec
            case RoundSettled(job_id=job_id):
                self._forming[(server.life, job_id)] = self._specs[(server.life, job_id)]
            case RoundSealed(job_id=job_id) | RunClosed(job_id=job_id):
                self._forming.pop((server.life, job_id), None)
                self._since.pop((server.life, job_id), None)

    def look(self, server: Server, transition: Transition) -> None:
        now_ms = server.now_ms()  # of the journal: a stall is no wait
        for key, spec in self._forming.items():
            life, job_id = key
            if life != server.life:
                continue
            ready = self.ready(server, job_id)
            if len(ready) < spec.min_nodes or self._awaits_return(server, job_id):
                self._since.pop(key, None)
                continue
            since_ms = self._since.setdefault(key, now_ms)
            waited_ms = now_ms - max(since_ms, server.settled_ms(spec))
            is_right = waited_ms <= _pauses_ms(spec, self.world.timing)
            names = [agent.name for agent in ready]
            self.require(is_right, f"{job_id} waits for {waited_ms} ms although {names} are ready")

    def _awaits_return(self, server: Server, job_id: JobId) -> bool:
        """Return whether the stream of an agent of the job has just ended."""
        return any(
            server.awaits_return(agent.session)
            for agent in self.world.agents.values()
            if agent.host.plan.job_id == job_id
        )


def _is_idle(state: AgentState) -> bool:
    """Return whether an agent could run a round, and its coordinator knows."""
    is_leaving = state.drain is not None or state.ending is not None
    return state.held is None and state.port > 0 and not state.reports and not is_leaving


def _pauses_ms(spec: JobSpec, timing: Timing) -> int:
    """Return how long a job may pause before a round that could begin."""
    pauses_ms = SLACK_MS + LAST_CALL_FACTOR * spec.last_call_ms
    if spec.restart_backoff_ms:
        pauses_ms += BACKOFF_MS_MAX
    if spec.fence_after_ms:
        pauses_ms += (
            spec.fence_after_ms + FENCE_SLACK_MS + timing.compute_lease_ms(spec, sessions=0)
        )
    return pauses_ms


HEALTH_RULES: tuple[type[Checker], ...] = (SetAsideHolds, QuarantineYields)
