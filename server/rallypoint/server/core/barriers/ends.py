"""How a generation of a barrier ends: released, or failed for everyone.

`break_barriers` looks at a job's facts after every step that touched it. It does not matter which
input changed a fact: once a worker has failed, a node has departed or the round is being stopped,
no one waits any longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from msgspec.structs import replace

from rallypoint.server.core.barriers.words import describe
from rallypoint.server.core.messages.effects import BarrierOver
from rallypoint.server.core.messages.records import BarrierDropped, BarrierEnded
from rallypoint.server.core.model.barrier import (
    NAMED_MAX,
    REMEMBERED_MS,
    Barrier,
    Break,
    BreakReason,
    Ended,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Round, RoundReason
from rallypoint.server.core.rounds.claims import is_round_over
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.verdicts.blame import describe_exit


def release(draft: Draft, barrier: Barrier) -> None:
    """End the open generation: everyone has arrived."""
    _end(draft, barrier, None)


def break_barriers(draft: Draft, job_id: JobId) -> None:
    """Fail what no one can complete any more; drop what belongs to a round or run that is over."""
    barriers = draft.barriers_of(job_id)
    if not barriers:
        return
    job, has_dropped = draft.job(job_id), False
    for barrier in barriers:
        is_run_over = job is None or job.phase is Phase.CLOSED or barrier.key.run != job.run
        is_over = is_run_over or (job is not None and is_round_over(job, barrier.key.round))
        if barrier.is_open:
            break_if_hopeless(draft, barrier, None if is_run_over else job)
        if is_over:
            drop_barrier(draft, barrier)
            has_dropped = True
    if has_dropped:
        _set_due(draft, job_id)


def expire_barriers(draft: Draft, job_id: JobId) -> None:
    """Fail the overdue generations of a job, and forget the ends that no one asks for any more."""
    job = draft.job(job_id)
    for barrier in draft.barriers_of(job_id):
        kept = barrier
        if barrier.ends and draft.now_ms >= barrier.ends[-1].at_ms + REMEMBERED_MS:
            kept = forget_ends(draft, barrier)
        if kept.is_open and draft.now_ms >= kept.deadline_ms and job is not None:
            waited_s = (draft.now_ms - (kept.opened_ms or 0)) / 1000
            text = f"not all participants arrived within {waited_s:g} s"
            break_barrier(draft, kept, job, BreakReason.OVERDUE, text)
    _set_due(draft, job_id)


def forget_ends(draft: Draft, barrier: Barrier) -> Barrier:
    """Forget how the generations of a barrier have ended; return the barrier."""
    kept = replace(barrier, ends=())
    draft.records.append(BarrierDropped(barrier.key, only_ends=True))
    draft.put_barrier(kept)
    return kept


def note_due(draft: Draft, job_id: JobId, at_ms: int) -> None:
    """Look at the barriers of the job at this time, or earlier."""
    due_ms = draft.deadline(DeadlineKind.BARRIER, job_id)
    if due_ms is None or at_ms < due_ms:
        draft.set_deadline(DeadlineKind.BARRIER, job_id, at_ms)


def _set_due(draft: Draft, job_id: JobId) -> None:
    """Set when the next generation of the job is overdue, or its end is forgotten."""
    times = [time_ms for barrier in draft.barriers_of(job_id) for time_ms in times_of(barrier)]
    draft.set_deadline(DeadlineKind.BARRIER, job_id, min(times, default=None))


def times_of(barrier: Barrier) -> Iterable[int]:
    """Yield when the open generation is overdue, and when the ends are forgotten."""
    if barrier.is_open:
        yield barrier.deadline_ms
    if barrier.ends:
        yield barrier.ends[-1].at_ms + REMEMBERED_MS


def drop_barrier(draft: Draft, barrier: Barrier) -> None:
    """Forget a barrier without an open generation."""
    draft.records.append(BarrierDropped(barrier.key))
    draft.remove_barrier(barrier.key)


def break_barrier(
    draft: Draft,
    barrier: Barrier,
    job: Job | None,
    reason: BreakReason,
    text: str,
    lost: Collection[Participant] = (),
) -> None:
    """Fail the open generation for everyone."""
    arrived = draft.arrivals_of(barrier.key)
    missing = (one for one in expected_participants(barrier, job) if one not in arrived)
    broken = Break(
        reason=reason,
        text=text,
        missing=tuple(islice(missing, NAMED_MAX)),
        missing_count=barrier.expected.count - len(arrived),
        lost=tuple(sorted(lost)[:NAMED_MAX]),
    )
    _end(draft, barrier, broken)


def _end(draft: Draft, barrier: Barrier, broken: Break | None) -> None:
    arrivals = tuple(sorted(draft.arrivals_of(barrier.key).items()))
    ended = Ended(barrier.generation, draft.now_ms, arrivals, broken)
    draft.put_barrier(barrier.closed(ended))
    draft.records.append(BarrierEnded(barrier.key, barrier.generation, draft.now_ms, broken))
    draft.effects.append(BarrierOver(barrier.key, ended))
    note_due(draft, barrier.key.job_id, draft.now_ms + REMEMBERED_MS)


def break_if_hopeless(
    draft: Draft, barrier: Barrier, job: Job | None, *, is_new: bool = True
) -> None:
    """Fail an open generation for which someone cannot come any more.

    Args:
        draft: the step.
        barrier: at which someone waits.
        job: None when the run is over.
        is_new: whether a worker may have ended since the last look.
    """
    if job is None:
        break_barrier(draft, barrier, None, BreakReason.ROUND_STOPPED, "the run is over")
        return
    number = barrier.round
    round = job.round
    if round is None or round.header.number != number:
        text = f"round {number} is over{_why_over(job, number)}"
        break_barrier(draft, barrier, job, BreakReason.ROUND_STOPPED, text)
    elif why := _why_unsound(round):
        break_barrier(draft, barrier, job, BreakReason.LOST, why, _find_lost(barrier, job))
    elif job.phase is not Phase.RUNNING:
        reason = (round.stop_reason or RoundReason.UNKNOWN).value
        text = f"round {number} was stopped: {reason}"
        break_barrier(draft, barrier, job, BreakReason.ROUND_STOPPED, text)
    elif is_new and round.any_finished and (gone := _find_gone(draft, barrier, job)):
        one = describe(gone[0])
        subject = one if len(gone) == 1 else f"{one} and {len(gone) - 1} more"
        text = f"{subject} ended with exit code 0 and did not arrive"
        break_barrier(draft, barrier, job, BreakReason.LOST, text, gone)


def _why_over(job: Job, number: int) -> str:
    """Return why a round has ended, as far as it is remembered, as the end of a sentence."""
    ended = next((one for one in reversed(job.history) if one.number == number), None)
    if ended is None:
        return ""
    return f": {ended.ended.value if ended.verdict is None else ended.verdict.text}"


def _why_unsound(round: Round) -> str:
    """Return what has happened to the round that will stop it, in words, or ""."""
    if round.failures:
        failed = round.failures[0]
        return f"rank {failed.rank} on node {failed.name} failed: {describe_exit(failed.exit)}"
    if round.start_failure is not None:
        name, text, _ = round.start_failure
        return f"node {name} could not start its workers: {text}"
    if round.departures:
        departure = round.departures[0]
        return f"node {departure.name} is gone: {departure.text}"
    return ""


def _find_lost(barrier: Barrier, job: Job) -> tuple[Participant, ...]:
    """Return the participants that have failed or whose node is gone, as far as they are known."""
    round = job.round
    if round is None:
        return ()
    ranks = {failed.rank for failed in round.failures}
    names = {departure.name for departure in round.departures}
    if round.start_failure is not None:
        names.add(round.start_failure[0])
    for member in round.members:
        if member.name in names:
            place = member.assignment
            ranks.update(range(place.first_rank, place.first_rank + place.local_world_size))
    lost = [Participant(ParticipantKind.RANK, rank, "") for rank in sorted(ranks)]
    lost += [Participant(ParticipantKind.NODE, 0, name) for name in sorted(names)]
    return tuple(one for one in lost if _is_expected(barrier, one))


def _is_expected(barrier: Barrier, participant: Participant) -> bool:
    expected = barrier.expected
    if expected.all_of is not None:
        return participant.kind is expected.all_of
    return not expected.participants or expected.names(participant)


def expected_participants(barrier: Barrier, job: Job | None) -> Iterable[Participant]:
    """Return who is expected, as far as the coordinator knows the names."""
    expected, round = barrier.expected, None if job is None else job.round
    match expected.all_of:
        case ParticipantKind.RANK:
            return (Participant(ParticipantKind.RANK, r, "") for r in range(expected.count))
        case ParticipantKind.NODE:
            members = () if round is None else round.members
            names = sorted(member.name for member in members)
            return (Participant(ParticipantKind.NODE, 0, name) for name in names)
        case _:
            return expected.participants


def _find_gone(draft: Draft, barrier: Barrier, job: Job) -> tuple[Participant, ...]:
    """Return the expected ranks and nodes that ended with exit code 0 and did not arrive."""
    if barrier.expected.all_of is None and not barrier.expected.participants:
        return ()  # no one in particular is expected
    return tuple(
        one
        for one in _list_ended(draft, job)
        if _is_expected(barrier, one) and draft.arrival(barrier.key, one) is None
    )


def _list_ended(draft: Draft, job: Job) -> Iterable[Participant]:
    """Yield the ranks that ended with exit code 0, and the nodes on which all ranks did."""
    assert job.round is not None
    gone = frozenset(job.round.succeeded_gone)
    for member in job.round.members:
        node, first = draft.holder(job.job_id, member.name), member.assignment.first_rank
        if member.name in gone or (node is not None and node.state is NodeState.SUCCEEDED):
            yield Participant(ParticipantKind.NODE, 0, member.name)
            ended: Iterable[int] = range(member.assignment.local_world_size)
        else:
            exits = () if node is None or not node.member else node.exits
            ended = (exit.local_rank for exit in exits if exit.exit_code == 0)
        for local_rank in ended:
            yield Participant(ParticipantKind.RANK, first + local_rank, "")
