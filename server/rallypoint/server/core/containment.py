"""What a failed step costs: the job at fault, found and removed without reading its facts.

A step decides about one job. When it raises, nothing has changed, and `JobBroken` ends the job in
the usual way. When that is impossible, because the changes were half applied or `JobBroken` raises
too, `evict` removes every entry of the job. What remains is a closed run with its numbers, so no
run or round number comes twice and a returning agent receives the outcome.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import BarrierOver, Disconnect, Effect, JobChanged
from rallypoint.server.core.messages.records import EventsLogged, JobForgotten, Record
from rallypoint.server.core.model.barrier import Break, BreakReason, Ended
from rallypoint.server.core.model.events import Emitted, EventKind, Facts
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.verdict import Consequence, Verdict, VerdictCause
from rallypoint.server.core.rounds.fences import SLACK_MS
from rallypoint.server.core.rounds.settling import REMEMBERED_MS
from rallypoint.server.core.state.deadlines import DeadlineKey, DeadlineKind
from rallypoint.server.core.state.state import State, remember_gone


class Eviction(Struct, frozen=True):
    """The records and effects of a job's removal."""

    records: tuple[Record, ...] = ()
    effects: tuple[Effect, ...] = ()


def find_subject(state: State, input: inputs.Input) -> JobId | None:
    """Return the job that the step of `input` is about, or None.

    Args:
        state: the state before the step; after a failed one it is the same.
        input: what was stepped. For a TimePassed the earliest deadline tells the job.
    """
    if isinstance(input, inputs.Request | inputs.Examined | inputs.JobBroken):
        return input.job_id
    match input:
        case inputs.Hello(identity=identity):
            return identity.job_id
        case inputs.TimePassed():
            first = state.deadlines.first()
            return None if first is None else find_deadline_subject(state, first[1])
        case inputs.Stalled():
            return None
        case _:
            node = state.nodes.get(input.sender.session)
            return None if node is None else node.job_id


def find_deadline_subject(state: State, key: DeadlineKey) -> JobId | None:
    """Return the job that a deadline belongs to, or None."""
    kind, subject = key
    if kind is DeadlineKind.WINDOW:
        return None
    if kind in _OF_SESSIONS:
        node = state.nodes.get(SessionId(subject))
        return None if node is None else node.job_id
    return JobId(subject)


_OF_SESSIONS = (DeadlineKind.LEASE, DeadlineKind.GRACE)


def internal_verdict(round_number: int, text: str) -> Verdict:
    """Return the verdict of a run that a bug of the coordinator ends."""
    return Verdict(
        VerdictCause.INTERNAL,
        round_number,
        None,
        f"internal error of the coordinator: {text}",
        consequence=Consequence.ENDED,
    )


def evict(
    state: State, job_id: JobId, sessions: Collection[SessionId], now_ms: int, text: str
) -> Eviction:
    """Remove a job whose state cannot be trusted; keep a closed run in its place.

    Args:
        state: changed in place, because no step can be trusted with this job.
        job_id: the job.
        sessions: further sessions of the job, which the state may have lost.
        now_ms: journal time.
        text: why, for the verdict. A run that was closed keeps its outcome and verdict.

    Returns: What to journal and carry out; every session of the job is disconnected.
    """
    job = state.jobs.pop(job_id, None)
    gone = {session for session, node in state.nodes.items() if node.job_id == job_id}
    gone.update(sessions, state.sessions.pop(job_id, ()))
    state.tallies.pop(job_id, None)
    space = state.keys.pop(job_id, None)
    state.holding.keys -= 0 if space is None else space.weight
    for session in gone:
        state.nodes.pop(session, None)
    state.heard = sum(node.is_heard for node in state.nodes.values())
    for index_key in [key for key in state.index if key[0] == job_id]:
        del state.index[index_key]
    for key in [key for key, _ in state.deadlines.items() if _is_of(key, job_id, gone)]:
        state.deadlines.set(key, None)
    effects: list[Effect] = [Disconnect(session) for session in sorted(gone)]
    effects += _end_barriers(state, job_id, now_ms, text)
    left = state.gone.get(job_id)
    if left is not None:
        remember_gone(state.gone, job_id, left)
    forgotten = JobForgotten(job_id, left)
    if job is None:
        state.holding.jobs = len(state.jobs)
        state.revise(job_id)
        deletion = _log_deletion(state, job_id, now_ms, text)
        return Eviction((forgotten, *deletion), tuple(effects))
    ended = _closed_run(job, now_ms, text)
    state.jobs[job_id] = ended
    state.revise(job_id)
    state.deadlines.set((DeadlineKind.FORGET, job_id), now_ms + REMEMBERED_MS)
    if job.phase is Phase.CLOSED:
        return Eviction((forgotten,), tuple(effects))
    assert ended.outcome is not None
    facts: Facts = (("run", ended.run), ("outcome", ended.outcome.value), ("why", text))
    effects.append(JobChanged(job_id, "run_closed", facts))
    facts += (("cause", VerdictCause.INTERNAL.value),)
    logged = _log(state, job_id, "run_closed", now_ms, (ended.run, ended.round_number), facts)
    return Eviction((forgotten, logged), tuple(effects))


def _log_deletion(state: State, job_id: JobId, now_ms: int, text: str) -> tuple[Record, ...]:
    """Log that a job has vanished, if readers know it."""
    known = state.events.jobs.get(job_id)
    if known is None or known.events[-1].kind is EventKind.JOB_DELETED:
        return ()
    place = (known.events[-1].run, known.events[-1].round)
    return (_log(state, job_id, "job_forgotten", now_ms, place, (("why", text),)),)


def _log(
    state: State, job_id: JobId, reason: str, now_ms: int, place: tuple[int, int], facts: Facts
) -> Record:
    """Log an event in place; `place` is the run and the round."""
    emitted = Emitted(job_id, reason, *place, facts)
    logged = EventsLogged(state.events.number((emitted,), now_ms, state.epoch))
    state.events.take(logged.events)
    return logged


def _end_barriers(state: State, job_id: JobId, now_ms: int, text: str) -> list[Effect]:
    """Remove the barriers of a job; those who wait learn it."""
    over: list[Effect] = []
    for key, barrier in state.barriers.pop(job_id, {}).items():
        state.counted.pop(key, None)
        state.holding.drop(key)
        arrivals = tuple(sorted(state.arrivals.pop(key, {}).items()))
        if barrier.is_open:
            missing = barrier.expected.count - len(arrivals)
            broken = Break(BreakReason.ROUND_STOPPED, text, missing_count=missing)
            over.append(BarrierOver(key, Ended(barrier.generation, now_ms, arrivals, broken)))
    return over


def _is_of(key: DeadlineKey, job_id: JobId, sessions: Collection[SessionId]) -> bool:
    kind, subject = key
    return subject in sessions if kind in _OF_SESSIONS else subject == job_id


def _closed_run(job: Job, now_ms: int, text: str) -> Job:
    """Return a closed run with the job's numbers and none of its other facts."""
    is_closed = job.outcome is not None
    fence_after_ms = job.spec.fence_after_ms
    return Job(
        job_id=job.job_id,
        run=job.run,
        spec=job.spec,
        opened_ms=job.opened_ms,
        since_epoch=job.since_epoch,
        phase=Phase.CLOSED,
        launch_id=job.launch_id,
        operations=job.operations,
        round_number=job.round_number,
        counts=job.counts,
        verdict=job.verdict if is_closed else internal_verdict(job.round_number, text),
        outcome=job.outcome if is_closed else Outcome.FAILED,
        closed_ms=job.closed_ms if is_closed else now_ms,
        # The workers of its former nodes may run until their agents learn the outcome.
        unknown_past_until_ms=now_ms + fence_after_ms + SLACK_MS if fence_after_ms else 0,
    )
