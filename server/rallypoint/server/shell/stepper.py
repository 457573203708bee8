"""Steps the core, and contains its failures: a bug ends one job or one stream, not the coordinator.

A step that raises has changed nothing. Its job ends by `JobBroken`, with a verdict that names the
incident in the log. When that fails too, or changes were half applied, the job is evicted. An input
that belongs to no open job ends its stream. A deadline that fails twice goes with its job, so none
can come for ever. Only a failed journal ends the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct, field

from rallypoint.base.log import get_logger, new_incident
from rallypoint.server.core.containment import evict, find_deadline_subject, find_subject
from rallypoint.server.core.invariants import check_job, check_touched
from rallypoint.server.core.memory.notes import ValuesBefore, note_changes, note_everything
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Effect, JobChanged, Refuse
from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.messages.records import ClockMeasured, EpochRaised
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.state import State, apply
from rallypoint.server.core.step import Transition, step

log = get_logger()

_CHECKED_WHOLE = frozenset({"round_sealed", "round_adopted", "round_stopped"})
"""Events after which the whole job is checked, not only the parts that the step touched."""
_WITHOUT_SENDER = inputs.Hello | inputs.Senderless


class Turn(Struct):
    """What the steps of one turn have decided so far, in order."""

    records: list[JournalRecord] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    changed: dict[JobId, None] = field(default_factory=dict)
    """Jobs that look different to their readers, or do not exist any more."""
    before: ValuesBefore = field(default_factory=ValuesBefore)
    """What the steps have changed, as it was before the turn; nothing when nothing is kept."""


class Stepper:
    """Applies inputs to the state, one at a time."""

    def __init__(self, state: State) -> None:
        """Take ownership of `state`."""
        self._state = state

    def step(self, input: inputs.Input, now_ms: int, turn: Turn) -> Refusal | None:
        """Step one input; add what it decides to `turn`.

        Args:
            input: what happened.
            now_ms: journal time.
            turn: receives records and effects.

        Returns: Why the input was refused, or None. INTERNAL when its step failed.
        """
        try:
            transition = step(self._state, input, now_ms)
        except Exception as error:  # noqa: BLE001  # a bug in one job must not end the others
            return self._contain(error, input, now_ms, turn)
        if self._state.durable:
            turn.before.keep(self._state, transition.delta)
        try:
            apply(self._state, transition.delta)
        except Exception as error:  # noqa: BLE001  # the same; the state holds a part of the changes
            return self._contain_torn(error, input, transition, now_ms, turn)
        turn.records.extend(transition.records)
        turn.effects.extend(transition.effects)
        turn.changed.update(dict.fromkeys(transition.delta.revised))
        if transition.refusal is not None:
            return transition.refusal
        try:
            self._check(transition)
        except Exception as error:  # noqa: BLE001  # the same; every change was applied
            self._contain_unsound(error, input, transition, now_ms, turn)
        return None

    def expire(self, now_ms: int, turn: Turn, is_over: Callable[[], bool]) -> None:
        """Step expired deadlines, the earliest first, until none is left or `is_over()`.

        It takes at least one step. The next turn handles the rest.
        """
        while (due_ms := self._state.next_deadline_ms()) is not None and due_ms <= now_ms:
            self.step(inputs.TimePassed(), now_ms, turn)
            if is_over():
                break

    def measure(self, now_ms: int, unix_ms: int, turn: Turn, *, keeps_time: bool = False) -> None:
        """Compare the clocks; times of day are right around a stall, also after a restart.

        `keeps_time` adds a record in any case: the journal time that has passed survives a crash.
        """
        records = self._state.clocks.measure(now_ms, unix_ms)
        if keeps_time and not records:
            records = [ClockMeasured(now_ms, unix_ms)]
        turn.records.extend(records)

    def close(self, turn: Turn) -> None:
        """Add to the records what the turn has changed of jobs and nodes. Nothing follows."""
        try:
            notes = note_changes(turn.before, turn.records, self._state)
        except Exception as error:  # a bug in one job must not end the others
            log.error("notes_failed", incident=new_incident(), exc_info=error)
            notes = note_everything(turn.before, self._state)
        turn.records.extend(notes)

    def _check(self, transition: Transition) -> None:
        check_touched(self._state, transition.delta)
        for effect in transition.effects:
            if isinstance(effect, JobChanged) and effect.reason in _CHECKED_WHOLE:
                check_job(self._state, effect.job_id)

    def _contain(
        self, error: Exception, input: inputs.Input, now_ms: int, turn: Turn
    ) -> Refusal | None:
        """Contain a step that raised; it has changed nothing."""
        job_id = find_subject(self._state, input)
        incident = _report(error, input, job_id)
        job = None if job_id is None else self._state.jobs.get(job_id)
        if isinstance(input, inputs.JobBroken):
            self._evict(input.job_id, (), now_ms, input.report, turn)
            return None
        if job is not None and job.phase is not Phase.CLOSED:
            self._break(job.job_id, _explain(error, incident), now_ms, turn)
        elif isinstance(input, inputs.TimePassed):
            self._remove_deadline(_explain(error, incident), now_ms, turn)
        elif not isinstance(input, _WITHOUT_SENDER):
            _end_stream(input.sender.session, input.sender.connection, incident, turn)
        if isinstance(input, inputs.Hello):
            _end_stream(input.identity.session, input.connection, incident, turn)
        return _refuse(incident)

    def _contain_torn(
        self,
        error: Exception,
        input: inputs.Input,
        transition: Transition,
        now_ms: int,
        turn: Turn,
    ) -> Refusal:
        """Contain a change that was applied in part: remove every job that it touched."""
        delta = transition.delta
        jobs = dict.fromkeys((*transition.jobs, *delta.jobs, *delta.tallies))
        if not jobs and (job_id := find_subject(self._state, input)) is not None:
            jobs[job_id] = None
        incident = _report(error, input, next(iter(jobs), None))
        turn.records.extend(one for one in transition.records if isinstance(one, EpochRaised))
        for job_id in jobs:
            self._evict(job_id, delta.nodes, now_ms, _explain(error, incident), turn)
        if isinstance(input, inputs.Hello):
            _end_stream(input.identity.session, input.connection, incident, turn)
        return _refuse(incident)

    def _contain_unsound(
        self,
        error: Exception,
        input: inputs.Input,
        transition: Transition,
        now_ms: int,
        turn: Turn,
    ) -> None:
        """Contain a failed check: the changes stand, but the job cannot be trusted."""
        jobs = (error.job_id,) if isinstance(error, BrokenInvariant) else transition.jobs
        incident = _report(error, input, next(iter(jobs), None))
        for job_id in jobs:
            job = self._state.jobs.get(job_id)
            if job is not None and job.phase is not Phase.CLOSED:
                self._break(job_id, _explain(error, incident), now_ms, turn)
            else:
                self._evict(job_id, (), now_ms, _explain(error, incident), turn)

    def _break(self, job_id: JobId, text: str, now_ms: int, turn: Turn) -> None:
        """End an open job with a report."""
        self.step(inputs.JobBroken(job_id, text), now_ms, turn)
        job = self._state.jobs.get(job_id)
        if job is not None and job.phase is not Phase.CLOSED:
            self._evict(job_id, (), now_ms, text, turn)

    def _remove_deadline(self, text: str, now_ms: int, turn: Turn) -> None:
        """Remove the earliest deadline, which cannot be handled, with its job."""
        first = self._state.deadlines.first()
        if first is None:
            return
        job_id = find_deadline_subject(self._state, first[1])
        if job_id is not None:
            self._evict(job_id, (), now_ms, text, turn)
        if self._state.deadlines.get(first[1]) == first[0]:
            self._state.deadlines.set(first[1], None)

    def _evict(
        self, job_id: JobId, sessions: Iterable[SessionId], now_ms: int, text: str, turn: Turn
    ) -> None:
        log.error("job_evicted", job_id=job_id, why=text)
        if self._state.durable:
            turn.before.keep_job(self._state, job_id)
        eviction = evict(self._state, job_id, tuple(sessions), now_ms, text)
        turn.records.extend(eviction.records)
        turn.effects.extend(eviction.effects)
        turn.changed[job_id] = None


def _report(error: Exception, input: inputs.Input, job_id: JobId | None) -> str:
    """Log an internal error with its traceback; return the id of the incident."""
    incident = new_incident()
    facts = {} if job_id is None else {"job_id": job_id}
    name = type(input).__name__
    log.error("step_failed", incident=incident, input=name, **facts, exc_info=error)
    return incident


def _explain(error: Exception, incident: str) -> str:
    """Return the reason for the verdict: an invariant in words, of any other error only its id."""
    if isinstance(error, BrokenInvariant):
        return f"the state of this job is inconsistent: {error.text} (incident {incident})"
    return f"the coordinator's log has the cause (incident {incident})"


def _refuse(incident: str) -> Refusal:
    return Refusal(RefusalKind.INTERNAL, (("incident", incident),))


def _end_stream(session: SessionId, connection: int, incident: str, turn: Turn) -> None:
    turn.effects.append(Refuse(session, connection, _refuse(incident)))
