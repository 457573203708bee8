"""A coordinator's core on a bench: fake agents, a fake clock, and every promise checked each step.

`Bench.take` steps one input and checks what must hold after any step whatever: the step changed
nothing by itself and gives the same result twice, a refused input changes nothing, no invariant is
broken, every node was sent exactly its desired state, and a replay of the records gives the durable
part of the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from rallypoint.server.core.invariants import check_job, check_touched, check_whole
from rallypoint.server.core.memory.notes import ValuesBefore, note_changes
from rallypoint.server.core.memory.replay import JournalRecord, memory_of, replay, snapshot
from rallypoint.server.core.memory.restore import restore
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import (
    Effect,
    JobChanged,
    Notify,
    Refuse,
    Send,
    Welcome,
)
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.core.model.desired import DesiredStandby, DesiredStop
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import RoundHeader
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.model.verdict import Consequence, Verdict
from rallypoint.server.core.reads.explain import Waiting, explain
from rallypoint.server.core.rounds.desired import desired_state
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import NO_CHANGES, State, apply
from rallypoint.server.core.step import Transition
from rallypoint.server.shell.clock import continue_ms
from support.core.decisions import Decision, RoundSealed, journalled, step
from support.core.fake_agents import JOB, FakeAgent, identity

HEARTBEAT_MS = 1_000
EPOCH = 1_000

_sessions = count(1)


class Died(Exception):
    """The coordinator has died in a step."""


class Death(NamedTuple):
    """When the coordinator dies, for tests that let it start again from its journal."""

    steps: int
    """How many more steps it takes whole."""
    is_written: bool
    """Whether the records of the last step reach the journal; its effects reach no agent."""


class Bench:
    """A coordinator's state, a clock that only `advance` moves, and its agents."""

    def __init__(
        self,
        spec: JobSpec | None = None,
        *,
        window_ms: int = 0,
        durable: bool = False,
        coordinator_id: str = "c1",
        epoch: int = EPOCH,
        timing: Timing | None = None,
    ) -> None:
        """Start a coordinator without state, at 0 ms."""
        self.spec = spec or JobSpec()
        self.now_ms = 0
        self.state = State(
            coordinator_id,
            epoch,
            durable=durable,
            timing=timing or Timing(),
            first_epoch=epoch,
            window_until_ms=window_ms,
            listens_until_ms=window_ms,
            has_unknown_past=window_ms > 0,
        )
        if window_ms:
            self.state.deadlines.set((DeadlineKind.WINDOW, ""), window_ms)
        self.records: list[JournalRecord] = [EpochRaised(epoch, window_until_ms=window_ms)]
        self._decided: list[tuple[int, Decision]] = []
        """Each decision about a job, and how many records were there before it."""
        self.effects: list[Effect] = []
        """All effects so far."""
        self.agents: dict[SessionId, FakeAgent] = {}
        self._memory = replay(self.records)
        self._next_beat_ms = HEARTBEAT_MS
        self.death: Death | None = None

    def agent(self, name: str, **facts: object) -> FakeAgent:
        """Return an agent before its Hello; `facts` as `identity` takes them."""
        spec = facts.pop("spec", self.spec)
        session = next(_sessions)
        who = identity(name, spec, session=session, **facts)  # type: ignore[arg-type]
        agent = FakeAgent(self, who, port=20_000)
        self.agents[agent.session] = agent
        return agent

    def adopt_agent(self, agent: FakeAgent) -> FakeAgent:
        """Move an agent from another bench, as if it found a new coordinator."""
        agent.bench = self
        self.agents[agent.session] = agent
        return agent

    def join(self, *names: str, **facts: object) -> tuple[FakeAgent, ...]:
        """Return new agents that were accepted, with their Hellos in this order."""
        joined = []
        for name in names:
            agent = self.agent(name, **facts)
            assert agent.hello().refusal is None
            joined.append(agent)
        return tuple(joined)

    def run_round(self, *names: str, **facts: object) -> tuple[FakeAgent, ...]:
        """Return new agents whose first round runs, started everywhere."""
        agents = self.join(*names, **facts)
        if agents[0].desired == DesiredStandby(spare=False):
            self.advance(self.spec.last_call_ms)
        self.obey()
        assert self.job(agents[0].identity.job_id).phase is Phase.RUNNING
        return agents

    def obey(self, *agents: FakeAgent) -> None:
        """Let `agents` (default: all) carry out their orders unless they are away or silent."""
        while any(
            agent.obey()
            for agent in agents or tuple(self.agents.values())
            if agent.beats and _is_attached(agent.node)
        ):
            pass

    def job(self, job_id: str = JOB) -> Job:
        """Return a job that must exist."""
        return self.state.jobs[JobId(job_id)]

    def wait(self, job_id: str = JOB) -> Waiting | None:
        """Return what a job waits for now."""
        return explain(self.state, self.job(job_id), self.now_ms)

    def the_wait(self, job_id: str = JOB) -> Waiting:
        """Return what a job, which must wait, waits for."""
        waiting = self.wait(job_id)
        assert waiting is not None
        return waiting

    def the_verdict(self, job_id: str = JOB) -> Verdict:
        """Return the verdict of a job, which must have one."""
        verdict = self.job(job_id).verdict
        assert verdict is not None
        return verdict

    @property
    def decisions(self) -> list[Decision]:
        """All decisions about jobs that the journal knows."""
        return [decision for _, decision in self._decided]

    def rounds(self, job_id: str = JOB) -> list[RoundHeader]:
        """Return the headers of all rounds that were sealed."""
        return [
            record.header
            for record in self.decisions
            if isinstance(record, RoundSealed) and record.job_id == job_id
        ]

    def order(self, job_id: str = JOB) -> list[str]:
        """Return the names of the current round by group rank."""
        round = self.job(job_id).round
        return [] if round is None else [str(member.name) for member in round.members]

    def events(self) -> list[str]:
        """Return the reasons of all changes so far."""
        return [effect.reason for effect in self.effects if isinstance(effect, JobChanged)]

    def notices(self) -> list[Notify]:
        """Return all notices so far."""
        return [effect for effect in self.effects if isinstance(effect, Notify)]

    def advance(self, ms: int) -> None:
        """Let time pass: heartbeats are sent and deadlines expire, each at its own time."""
        until_ms = self.now_ms + ms
        while True:
            beating = [a for a in self.agents.values() if a.beats and _is_attached(a.node)]
            if not beating:
                self._next_beat_ms = max(self._next_beat_ms, until_ms + HEARTBEAT_MS)
            due_ms = self.state.next_deadline_ms()
            if self._next_beat_ms <= min(until_ms, until_ms if due_ms is None else due_ms):
                self.now_ms = max(self.now_ms, self._next_beat_ms)
                self._next_beat_ms = self.now_ms + HEARTBEAT_MS
                for agent in beating:
                    agent.heartbeat()
            elif due_ms is not None and due_ms <= until_ms:
                self.now_ms = max(self.now_ms, due_ms)
                self.take(inputs.TimePassed())
            else:
                break
        self.now_ms = until_ms

    def take(self, said: inputs.Input) -> Transition:
        """Step one input, check everything, and pass the effects to the agents.

        Raises:
            Died: instead of the effects, when that was planned.
        """
        before, revision = _photograph(self.state), self.state.revision
        transition = step(self.state, said, self.now_ms)
        assert step(self.state, said, self.now_ms) == transition, "two results for one input"
        assert _photograph(self.state) == before, "the step changed its argument"
        if transition.refusal is not None:
            assert transition.delta == NO_CHANGES and not transition.records
            assert all(isinstance(effect, Refuse) for effect in transition.effects)
        changed = ValuesBefore()
        changed.keep(self.state, transition.delta)
        apply(self.state, transition.delta)
        self._die(changed, transition)
        check_touched(self.state, transition.delta)
        assert self.state.heard == sum(node.is_heard for node in self.state.nodes.values())
        if isinstance(said, inputs.Heartbeat):
            return transition
        for job_id in self.state.jobs:
            check_job(self.state, job_id)
        self._check_revisions(revision, transition)
        records = self._note(changed, transition)
        self.records.extend(records)
        self.effects.extend(transition.effects)
        self._memory = replay((*snapshot(self._memory), *records))
        assert memory_of(self.state) == self._memory
        self._tell(transition.effects)
        self._check_told()
        self._check_deadlines()
        return transition

    def _die(self, changed: ValuesBefore, transition: Transition) -> None:
        """End the coordinator if this is its last step."""
        if self.death is None:
            return
        if self.death.steps > 0:
            self.death = self.death._replace(steps=self.death.steps - 1)
            return
        if self.death.is_written:
            self.records += self._note(changed, transition)
        self.death = None
        raise Died

    def _note(self, changed: ValuesBefore, transition: Transition) -> list[JournalRecord]:
        """Return what the journal has of a step, and keep its decisions."""
        at = len(self.records)
        self._decided += [(at, one) for one in transition.records if isinstance(one, Decision)]
        records = journalled(transition.records)
        return [*records, *note_changes(changed, records, self.state)]

    def restart(self, journal: Iterable[JournalRecord] = (), away_ms: int = 0) -> None:
        """Let the coordinator start again from its journal; every stream is gone.

        Meanwhile journal time stands, however long that takes.

        Args:
            journal: what it loads; empty: everything that it has recorded.
            away_ms: how long that takes, by the wall clock.
        """
        loaded = tuple(journal or self.records)
        self.now_ms = continue_ms(self.now_ms)
        memory = replay(loaded)
        restored = restore(
            memory,
            coordinator_id=self.state.coordinator_id,
            epoch=memory.epoch + 1,
            durable=True,
            timing=self.state.timing,
            now_ms=self.now_ms,
            explain=lambda _, error: str(error),
            away_ms=away_ms,
        )
        self.state = restored.state
        self._decided = [(at, one) for at, one in self._decided if at < len(loaded)]
        self.records = [*loaded, *restored.records]
        self._memory = replay(self.records)
        assert memory_of(self.state) == self._memory
        assert not self._memory.broken
        for job_id in self.state.jobs:
            check_whole(self.state, job_id)
        self._check_deadlines()
        while (due_ms := self.state.next_deadline_ms()) is not None and due_ms <= self.now_ms:
            self.take(inputs.TimePassed())

    def check_journal(self) -> None:
        """Check that a replay of all records from the first gives what the state remembers."""
        assert memory_of(self.state) == replay(self.records)

    def _tell(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Welcome | Send) and effect.session in self.agents:
                self.agents[effect.session].receive(effect)

    def _check_revisions(self, before: int, transition: Transition) -> None:
        """Check that every job that was changed has a revision that was not given before."""
        revisions, jobs = self.state.revisions, self.state.jobs
        given = sorted((*revisions.jobs.values(), *revisions.deletions.values()))
        assert revisions.jobs.keys() == jobs.keys()
        assert list(revisions.jobs.values()) == sorted(revisions.jobs.values())
        assert len(set(given)) == len(given) and max(given, default=0) <= self.state.revision
        for job_id in (*transition.delta.jobs, *transition.delta.revised):
            assert self.state.revision_of(job_id) > before

    def _check_told(self) -> None:
        """Check that every node received its desired state, and nothing else."""
        for node in self.state.nodes.values():
            job = self.state.jobs[node.job_id]
            if node.held is not None and job.phase is not Phase.CLOSED:
                continue  # nothing is decided about its round yet
            if node.desired is None and not node.attached:
                continue  # it has not returned since the coordinator started again
            wanted = desired_state(job, node)
            if isinstance(wanted, DesiredStop) and isinstance(node.desired, DesiredStop):
                wanted = replace(
                    wanted,
                    reason=node.desired.reason,
                    text=node.desired.text,
                    shutdown_timeout_ms=node.desired.shutdown_timeout_ms,
                )
            assert wanted == node.desired, f"{node.name} was not told"
            assert wanted == self.agents[node.session].desired

    def _check_deadlines(self) -> None:
        """Check that what is waited for is what can still happen, and nothing else."""
        state = self.state
        for kind, subject in dict(state.deadlines.items()):
            node, job = state.nodes.get(SessionId(subject)), state.jobs.get(JobId(subject))
            match kind:
                case DeadlineKind.WINDOW:
                    assert state.window_until_ms > 0
                case DeadlineKind.ADOPT:
                    assert state.window_until_ms == 0 and job is not None
                case DeadlineKind.LEASE | DeadlineKind.GRACE:
                    assert node is not None
                    assert node.attached == (kind is DeadlineKind.LEASE)
                case DeadlineKind.BARRIER:
                    assert state.barriers[JobId(subject)]
                case DeadlineKind.QUARANTINE_END:
                    assert job is not None
                    due_ms = state.deadlines.get((kind, subject))
                    assert due_ms in {known.quarantined_until_ms for known in job.health}
                case _:
                    assert job is not None
                    assert job.phase is _PHASES[kind], f"{kind.name} while {job.phase.value}"
        for node in state.nodes.values():
            kind = DeadlineKind.LEASE if node.attached else DeadlineKind.GRACE
            assert state.deadlines.get((kind, node.session)) is not None


_PHASES = {
    DeadlineKind.FORMING: Phase.FORMING,
    DeadlineKind.START: Phase.RUNNING,
    DeadlineKind.GROWTH: Phase.RUNNING,
    DeadlineKind.DRAIN: Phase.RUNNING,
    DeadlineKind.CULPRIT: Phase.RUNNING,
    DeadlineKind.HANG: Phase.RUNNING,
    DeadlineKind.STOP: Phase.STOPPING,
    DeadlineKind.ABANDON: Phase.FORMING,
    DeadlineKind.FORGET: Phase.CLOSED,
}
"""The kinds of waits that are possible in each phase."""


def _is_attached(node: Node | None) -> bool:
    return node is not None and node.attached


def _photograph(state: State) -> tuple[object, ...]:
    """Return a copy of the state that does not change later."""
    return (
        state.epoch,
        state.window_until_ms,
        dict(state.jobs),
        dict(state.nodes),
        {job_id: tuple(sessions) for job_id, sessions in state.sessions.items()},
        dict(state.index),
        dict(state.tallies),
        dict(state.deadlines.items()),
        {job_id: dict(barriers) for job_id, barriers in state.barriers.items()},
        {key: dict(arrivals) for key, arrivals in state.arrivals.items()},
        {job_id: space.copy() for job_id, space in state.keys.items()},
        state.revision,
        dict(state.revisions.jobs),
    )


def consequence(job: Job) -> Consequence | None:
    """Return what followed the latest failure of the job."""
    return None if job.verdict is None else job.verdict.consequence
