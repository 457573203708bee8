"""Suspects a running round to hang, and withdraws that.

A round is suspected when it is fully started, every member is attached and either stands still or
has succeeded, and the latest step of a worker is at least `hang_after` old. Agents decide when a
node stands still; the core needs no clock of theirs. Any progress withdraws the suspicion. A member
that is away may make progress, so its round is not suspected, and not stopped either.

The shell takes evidence of a suspected round. When that has come, or is overdue, the round is
stopped if its specification says so.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Hang, Round
from rallypoint.server.core.model.spec import HangAction
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.tally import Tally
from rallypoint.server.core.verdicts.blame import describe_hang

EVIDENCE_DUE_MS = 5_000
"""How long a suspicion waits for its evidence, which agents take within 2 s."""
OVERDUE = f"no evidence came within {EVIDENCE_DUE_MS // 1000} s"
TEXT_CHARS_MAX = 1_024
"""Characters that are kept of what the evidence says."""


def watch(draft: Draft, job: Job) -> Job:
    """Suspect the running round or withdraw that, as is due; return the job after it."""
    round, tally = job.round, draft.tally(job.job_id)
    assert round is not None
    due_ms = None
    if round.hang is None:
        due_ms = _suspect_at_ms(job, round, tally)
        if due_ms is not None and draft.now_ms >= due_ms:
            job = _suspect(draft, job, round)
            due_ms = draft.now_ms + EVIDENCE_DUE_MS
    elif tally.moving:
        job = _withdraw(draft, job, round, round.hang, "a worker makes progress again")
    else:
        due_ms = evidence_due_ms(round)
        if due_ms is not None and draft.now_ms >= due_ms:
            later_ms = draft.deadline(DeadlineKind.HANG, job.job_id) or 0
            if tally.unknown:  # the shell asks all members when the last one is back
                due_ms = draft.now_ms + EVIDENCE_DUE_MS
            elif later_ms > draft.now_ms:
                due_ms = later_ms
            else:
                hang, due_ms = replace(round.hang, is_examined=True, text=OVERDUE), None
                job = replace(job, round=replace(round, hang=hang))
                draft.put_job(job)
    draft.set_deadline(DeadlineKind.HANG, job.job_id, due_ms)
    return job


def evidence_due_ms(round: Round) -> int | None:
    """Return until when the evidence of a suspicion is awaited; None: it is not.

    Agents may have to return to a coordinator that has started again first.
    """
    hang = round.hang
    if hang is None or hang.is_examined:
        return None
    return max(hang.suspected_ms, round.taken_over_ms or 0) + EVIDENCE_DUE_MS


def must_stop(job: Job, tally: Tally) -> bool:
    """Return whether the running round is stopped because it hangs.

    Not without evidence that it does: a false alarm that stops a round costs more than a hang.
    """
    hang = None if job.round is None else job.round.hang
    if hang is None or job.spec.hang_action is not HangAction.RESTART:
        return False
    return hang.is_conclusive and tally.moving == tally.unknown == 0


def note_step(draft: Draft, job: Job) -> None:
    """Withdraw the suspicion of a running round whose latest step is young enough."""
    round = job.round
    assert round is not None
    if round.hang is None or round.failures:  # it waits for the culprit of these
        return
    due_ms = _young_until_ms(job, round)
    if draft.now_ms < due_ms:
        _withdraw(draft, job, round, round.hang, "a worker reported a step")
        draft.set_deadline(DeadlineKind.HANG, job.job_id, due_ms)  # if they still stand then


def receive_examined(draft: Draft, examined: inputs.Examined) -> None:
    """Note what the evidence of a suspected round says; the latest evidence counts."""
    job = draft.job(examined.job_id)
    if job is None or job.phase is not Phase.RUNNING:
        return
    round = job.round
    assert round is not None
    if round.header.number != examined.round or round.hang is None:
        return
    hang = replace(
        round.hang,
        is_examined=True,
        is_conclusive=examined.is_conclusive,
        rank=examined.rank,
        name=_find_name(round, examined.rank),
        text=examined.text[:TEXT_CHARS_MAX],
    )
    draft.put_job(replace(job, round=replace(round, hang=hang)))


def _suspect_at_ms(job: Job, round: Round, tally: Tally) -> int | None:
    """Return when the round is suspected if nothing changes; None: never."""
    is_whole = round.started_ms is not None and tally.moving == tally.unknown == 0
    if job.spec.hang_after_ms == 0 or not is_whole or tally.members == tally.succeeded:
        return None
    return _young_until_ms(job, round)


def _young_until_ms(job: Job, round: Round) -> int:
    """Return until when the latest step of the round is too young for a suspicion.

    An earlier coordinator may have heard of a later step. If it had heard of none, there was none.
    """
    latest_ms = round.step_ms
    has_no_step = round.timeline is not None and round.timeline.first_step_ms is None
    if latest_ms is None and not has_no_step:
        latest_ms = round.taken_over_ms
    return round.sealed_ms if latest_ms is None else latest_ms + job.spec.hang_after_ms


def _suspect(draft: Draft, job: Job, round: Round) -> Job:
    members = (node for node in draft.nodes_of(job.job_id) if node.member)
    still_ms = [node.still_since_ms for node in members if node.still_since_ms is not None]
    since_ms = max(round.sealed_ms, round.step_ms or 0, *still_ms)
    hang = Hang(since_ms, draft.now_ms)
    job = replace(job, round=replace(round, hang=hang))
    draft.put_job(job)
    also = (("still_ms", hang.suspected_ms - hang.since_ms),)
    why = describe_hang(hang)
    draft.emit(job.job_id, "hang_suspected", also, round=round.header.number, why=why)
    return job


def _withdraw(draft: Draft, job: Job, round: Round, hang: Hang, why: str) -> Job:
    job = replace(job, round=replace(round, hang=None))
    draft.put_job(job)
    also = (("evidence", hang.text),) if hang.text else ()
    draft.emit(job.job_id, "hang_ended", also, round=round.header.number, why=why)
    return job


def _find_name(round: Round, rank: int | None) -> NodeName:
    """Return the name of the member that has a rank; empty: none has."""
    if rank is None:
        return NodeName("")
    for member in round.members:
        first = member.assignment.first_rank
        if first <= rank < first + member.assignment.local_world_size:
            return member.name
    return NodeName("")
