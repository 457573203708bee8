"""What operators may rely on, judged by the journal and by what their requests have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import JobChanged
from rallypoint.server.core.messages.records import JobForgotten
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.node import Eligibility
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import REQUESTED, RoundHeader, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.step import Transition
from sim.rules.rules import Checker
from support.core.decisions import (
    JobUpdated,
    Record,
    RoundSealed,
    RoundSettled,
    RoundStopped,
    RunClosed,
    RunOpened,
)

if TYPE_CHECKING:
    from sim.world.server import Server
    from sim.world.world import World

_FOUND = frozenset({"round_adopted", "round_found_incomplete"})
_GONE = frozenset({RefusalKind.UNKNOWN_JOB, RefusalKind.NOT_READY})
"""Why an attempt may be refused although an earlier one was not: there is no job to act on, or the
coordinator has begun again in its first window and asks to come later."""


class OperationsHold(Checker):
    """Each request with an id changes something once, and what it promises comes true.

    * Once an attempt was taken, no other changes anything, and none is refused.
    * A cancelled run is closed at once, and nothing of a closed run begins again.
    * A deleted job is gone, with everything that a reader could see.
    * A restart stops the round that was meant, and only requests stop rounds for one. It is free.
    * A created run has the specification that was requested, and a changed one what was changed.
    * Every round fits the specification of its run as it is then, and so do its restarts.
    * A forced cancellation leaves no silent node.
    * A change that requires its nodes stops no round while fewer are there.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._taken: set[tuple[int, JobId, str]] = set()
        self._specs: dict[tuple[int, JobId], JobSpec] = {}
        """Of the latest run, by the journal of each life."""
        self._runs: dict[tuple[int, JobId], int] = {}
        self._closed: dict[tuple[int, JobId], bool] = {}
        self._round: dict[tuple[int, JobId], RoundHeader] = {}
        """The round that runs, by the journal of each life."""
        self._last: dict[tuple[int, JobId], RoundHeader] = {}
        """The latest round, whether it runs or not."""
        self._found: set[JobId] = set()
        """Jobs whose round the current step has found running."""

    # --- steps ---

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        self._found = {
            effect.job_id
            for effect in transition.effects
            if isinstance(effect, JobChanged) and effect.reason in _FOUND
        }
        if isinstance(input, inputs.Operation):
            self._judge(server, input, transition)
        for record in transition.records:
            asked = isinstance(input, inputs.RestartJob)
            if isinstance(record, RoundStopped) and record.reason is RoundReason.RESTART_REQUESTED:
                self.require(asked, f"round {record.round} restarts without a request")

    def _judge(self, server: Server, input: inputs.Operation, transition: Transition) -> None:
        key, refusal = (server.life, input.job_id, input.request_id), transition.refusal
        if key in self._taken:
            is_refused = refusal is not None and refusal.kind not in _GONE
            self.require(not is_refused, f"refused {input} after an earlier attempt: {refusal}")
            self.require(not transition.records, f"{input} counts twice: {transition.records}")
            self.world.coverage.counts["event", "operation repeated"] += 1
            return
        if refusal is not None:
            return
        if input.request_id:
            self._taken.add(key)
        self._judge_effect(server, input, transition.records)

    def _judge_effect(
        self, server: Server, input: inputs.Operation, records: tuple[Record, ...]
    ) -> None:
        """Judge what an accepted request has done, before its records are noted."""
        key = (server.life, input.job_id)
        match input:
            case inputs.CreateJob(spec=spec):
                opened = [one.spec for one in records if isinstance(one, RunOpened)]
                self.require(opened == [spec], f"{input} opened {opened}")
            case inputs.CancelJob(run=run, give_up_silent_nodes=is_forced):
                if is_forced and run in (0, self._runs.get(key)):
                    self._judge_given_up(server, input)
                if run in (0, self._runs.get(key)) and not self._closed.get(key, True):
                    ends = [one.outcome for one in records if isinstance(one, RunClosed)]
                    self.require(ends == [Outcome.CANCELLED], f"{input} ended the run as {ends}")
            case inputs.DeleteJob():
                gone = [one.job_id for one in records if isinstance(one, JobForgotten)]
                self.require(gone == [input.job_id], f"{input} forgot {gone}")
                self.require(input.job_id not in server.state.jobs, f"{input} left the job")
            case inputs.RestartJob(round=round):
                header = self._round.get(key)
                stops = [one.round for one in records if isinstance(one, RoundStopped)]
                is_meant = header is not None and round in (0, header.number)
                wanted = [header.number] if header is not None and is_meant else []
                self.require(stops == wanted, f"{input} stopped {stops} and not {wanted}")
            case inputs.UpdateJob():
                self._judge_update(server, input, records)
            case inputs.Cordon(name=name):
                healths = server.state.jobs[input.job_id].health
                is_cordoned = any(one.name == name and one.cordoned for one in healths)
                self.require(is_cordoned, f"{input} cordoned nothing")

    def _judge_given_up(self, server: Server, input: inputs.CancelJob) -> None:
        state = server.state
        for session in state.sessions.get(input.job_id, ()):
            node = state.nodes[session]
            silent_ms = state.silent_ms(node, server.now_ms())
            limit_ms = 2 * state.heartbeat_ms(state.jobs[input.job_id].spec)
            self.require(silent_ms <= limit_ms, f"{input} left {node.name}, silent for {silent_ms}")

    def _judge_update(
        self, server: Server, input: inputs.UpdateJob, records: tuple[Record, ...]
    ) -> None:
        key = (server.life, input.job_id)
        before = self._specs[key]
        found = next((one.spec for one in records if isinstance(one, JobUpdated)), before)
        for name in ("min_nodes", "max_nodes"):
            wanted = getattr(input, name)
            wanted = getattr(before, name) if wanted is None else wanted
            self.require(getattr(found, name) == wanted, f"{input} made {found} of {before}")
        header = self._round.get(key)
        sizes = (before.min_nodes, before.max_nodes), (found.min_nodes, found.max_nodes)
        if header is not None and sizes[0] != sizes[1]:  # an adopted round may fit neither
            fits = found.min_nodes <= header.group_world_size <= found.max_nodes
            stops = [one.reason for one in records if isinstance(one, RoundStopped)]
            self.require(fits or RoundReason.RESIZED in stops, f"{header} runs on after {input}")
            nodes = [server.state.nodes[one] for one in server.state.sessions[input.job_id]]
            there = [
                node
                for node in nodes
                if node.drain is None and node.eligibility is not Eligibility.CORDONED
            ]
            is_enough = fits or len(there) >= found.min_nodes
            self.require(is_enough or not input.require_nodes, f"{input} stops {header} for nodes")

    # --- the journal ---

    def recorded(self, server: Server, record: Record) -> None:
        match record:
            case RunOpened(job_id=job_id):
                key = (server.life, job_id)
                self._specs[key], self._runs[key] = record.spec, record.run
                self._closed[key] = False
                self._round.pop(key, None)
            case JobUpdated(job_id=job_id, spec=spec):
                self._specs[(server.life, job_id)] = spec
            case RoundSealed(job_id=job_id, header=header):
                self._check_round(server, job_id, header)
            case RoundStopped(job_id=job_id):
                self._round.pop((server.life, job_id), None)
            case RoundSettled(job_id=job_id):
                self._check_cost(server, record)
            case RunClosed(job_id=job_id):
                self._closed[(server.life, job_id)] = True
                self._round.pop((server.life, job_id), None)
            case JobForgotten(job_id=job_id):
                for known in (self._specs, self._runs, self._closed, self._round):
                    known.pop((server.life, job_id), None)

    def _check_round(self, server: Server, job_id: JobId, header: RoundHeader) -> None:
        key = (server.life, job_id)
        self._round[key] = header
        self._last[key] = header
        self.require(not self._closed.get(key, True), f"{header} begins in a closed run")
        if job_id in self._found:
            return  # another coordinator sealed it
        spec, size = self._specs[key], header.group_world_size
        self.require(spec.min_nodes <= size <= spec.max_nodes, f"{header} does not fit {spec}")
        self.require(header.restart_count <= spec.max_restarts, f"{header} has {spec}")

    def _check_cost(self, server: Server, record: RoundSettled) -> None:
        header = self._last.get((server.life, record.job_id))
        if record.reason in REQUESTED and header is not None:
            charged = record.counts.restart_count - min(
                header.restart_count, record.counts.restart_count
            )
            self.require(charged == 0, f"round {record.round}, ended on request, is charged")
