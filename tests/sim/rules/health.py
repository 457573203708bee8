"""Rules for nodes that are quarantined or cordoned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import JobChanged
from rallypoint.server.core.messages.records import JobForgotten, NodeHealthChanged, RoundSealed
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.reads.explain import explain
from rallypoint.server.core.step import Transition
from sim.rules.rules import Checker

if TYPE_CHECKING:
    from sim.world.server import Server
    from sim.world.world import World

_TAKEN_OVER = frozenset({"round_adopted", "round_found_incomplete"})
"""Reasons of rounds that were running already when a node was set aside."""


class _SetAside(Checker):
    """Knows which nodes are set aside, from operators' requests and from the journal."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._cordoned: set[tuple[int, JobId, NodeName]] = set()
        self._quarantined: dict[tuple[int, JobId, NodeName], int] = {}
        """When the quarantine ends, in journal time."""

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        for record in transition.records:
            if isinstance(record, NodeHealthChanged):
                key = (server.life, record.job_id, record.health.name)
                self._quarantined[key] = record.health.quarantined_until_ms
            elif isinstance(record, JobForgotten):
                self._forget(record.job_id)
        if isinstance(input, inputs.Cordon) and transition.refusal is None:
            self._cordoned.add((server.life, input.job_id, input.name))
        elif isinstance(input, inputs.Uncordon):
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
            least = server.state.jobs[job_id].spec.min_nodes
            self.require(len(names) <= least, f"{sick} are quarantined among {names}")
            spare = [
                node.name
                for node in server.state.nodes.values()
                if node.job_id == job_id
                and node.is_clean
                and node.drain is None
                and not self.is_cordoned(server, job_id, node.name)
                and not self.is_quarantined(server, job_id, node.name)
            ]
            self.require(not spare, f"{sick} are quarantined while {spare} are to spare")


class QuarantineYields(_SetAside):
    """No job waits for nodes while min_nodes are clean that neither drain nor are cordoned."""

    def look(self, server: Server, transition: Transition) -> None:
        for job_id in transition.jobs:
            job = server.state.jobs.get(job_id)
            if job is None or job.phase is not Phase.FORMING:
                continue
            clean = [
                node.name
                for node in server.state.nodes.values()
                if node.job_id == job_id
                and node.is_clean
                and node.drain is None
                and not self.is_cordoned(server, job_id, node.name)
            ]
            waiting = explain(server.state, job, server.now_ms())
            is_short = waiting is not None and waiting.kind is WaitKind.NODES
            is_right = not is_short or len(clean) < job.spec.min_nodes
            self.require(is_right, f"{job_id} waits for nodes and has {clean}")


HEALTH_RULES: tuple[type[Checker], ...] = (SetAsideHolds, QuarantineYields)
