"""The end of a round and of a run: what a stopped round means, and the history kept of it."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.model.job import HISTORY_MAX, RUNS_MAX, Job, RunSummary
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import (
    Round,
    RoundReason,
    RoundSummary,
)
from rallypoint.server.core.model.verdict import Consequence, Verdict, VerdictCause
from rallypoint.server.core.rounds.fences import fence_unclean
from rallypoint.server.core.rounds.phases import PhaseEvent, next_phase
from rallypoint.server.core.rounds.timelines import ended_timeline
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.verdicts.blame import find_disrupted_ms
from rallypoint.server.core.verdicts.health import charge_node
from rallypoint.server.core.verdicts.policy import Judgement, judge

REMEMBERED_MS = 86_400_000
"""How long the outcome of an ended run is remembered: a day."""
NAMES_MAX = 64
"""Node names that the summary of an ended round keeps."""


def settle(draft: Draft, job: Job) -> None:
    """Decide what the stopped round means, now that every member is clean, lost or overdue."""
    round, now_ms = job.round, draft.now_ms
    assert round is not None and round.stop_reason is not None
    is_incurable = _is_incurable(draft, job, round)
    judgement = judge(job, round, now_ms, is_incurable=is_incurable)
    job = replace(
        job,
        history=_with_summary(job, round, judgement.reason, judgement.verdict),
        verdict=judgement.verdict or _decided(job.verdict, judgement.consequence),
        counts=judgement.counts,
        backoff_until_ms=now_ms + judgement.backoff_ms,
        next_reason=judgement.reason,
    )
    draft.set_deadline(DeadlineKind.STOP, job.job_id, None)
    draft.put_job(job)
    charge_node(draft, job, round, judgement.verdict)
    job = draft.require_job(job.job_id)
    if not judgement.goes_on:
        _emit_settled(draft, job, round, judgement)
        close(draft, job, Outcome.FAILED, judgement.verdict)
        return
    members = [node for node in draft.nodes_of(job.job_id) if node.member]
    for node in members:
        draft.put_node(replace(node, member=False, assignment=None))
    draft.put_job(
        replace(
            job,
            phase=next_phase(job, PhaseEvent.SETTLE),
            round=None,
            forming_since_ms=now_ms,
            first_ready_ms=None,
            last_arrival_ms=now_ms,
            disrupted_ms=find_disrupted_ms(round),
            ended_round=ended_timeline(round, now_ms),
        )
    )
    for node in members:
        fence_unclean(draft, node)
    _emit_settled(draft, job, round, judgement)


def _is_incurable(draft: Draft, job: Job, round: Round) -> bool:
    """Return whether a node can never start its workers, and the run cannot do without it.

    When enough other nodes are ready, a restart cures it: the node is quarantined at once, and a
    spare takes its slot, or the round is smaller. That costs a restart, as the failure of a worker
    does. Without quarantines the next round would have the node again.
    """
    if round.start_failure is None or not round.start_failure[2]:
        return False
    name, spec = round.start_failure[0], job.spec
    others = sum(node.is_eligible and node.name != name for node in draft.nodes_of(job.job_id))
    return spec.quarantine_after == 0 or others < spec.min_nodes


def _decided(verdict: Verdict | None, consequence: Consequence) -> Verdict | None:
    """Return a verdict that readers have seen, with the consequence if it was still open.

    An operator may restart a round in which workers have failed. The failure costs nothing then.
    """
    if verdict is None or verdict.consequence is not Consequence.UNDECIDED:
        return verdict
    return replace(verdict, consequence=consequence)


def _emit_settled(draft: Draft, job: Job, round: Round, judgement: Judgement) -> None:
    verdict = judgement.verdict
    also: list[tuple[str, str | int]] = [
        ("ended", judgement.reason.value),
        ("consequence", judgement.consequence.value),
    ]
    if verdict is not None:
        also += [("cause", verdict.cause.value), ("node", verdict.name or "")]
        also += [] if verdict.culprit is None else [("rank", verdict.culprit.rank)]
    draft.emit(
        job.job_id,
        "round_settled",
        tuple(also),
        round=round.header.number,
        restarts=job.counts.restart_count,
        pause_ms=judgement.backoff_ms,
    )


def _with_summary(
    job: Job, round: Round, ended: RoundReason, verdict: Verdict | None
) -> tuple[RoundSummary, ...]:
    """Return the job's history with a summary of `round`; at the limit the oldest is dropped."""
    ended_ms = round.stop_ms if round.stop_ms is not None else round.sealed_ms
    header, started_ms = round.header, round.started_ms
    recovered_ms = None
    if started_ms is not None and round.disrupted_ms is not None:
        recovered_ms = started_ms - round.disrupted_ms
    summary = RoundSummary(
        run=header.run,
        number=header.number,
        began=header.reason,
        ended=ended,
        names=tuple(member.name for member in round.members[:NAMES_MAX]),
        group_world_size=header.group_world_size,
        world_size=header.world_size,
        restart_count=header.restart_count,
        started_after_ms=None if started_ms is None else started_ms - round.sealed_ms,
        lasted_ms=ended_ms - round.sealed_ms,
        recovered_after_ms=recovered_ms,
        began_ms=round.sealed_ms,
        ended_ms=ended_ms,
        verdict=None if verdict is None else verdict.without_output(),
        timeline=round.timeline,
        stop_note=round.stop_note,
    )
    return (*job.history, summary)[-HISTORY_MAX:]


def with_run(job: Job) -> tuple[RunSummary, ...]:
    """Return the earlier runs of a job with its latest one, which is closed."""
    assert job.outcome is not None and job.closed_ms is not None, job.job_id
    ended = RunSummary(
        run=job.run,
        outcome=job.outcome,
        verdict=None if job.verdict is None else job.verdict.without_output(),
        restart_count=job.counts.restart_count,
        max_restarts=job.spec.max_restarts,
        round=job.latest_round,
        opened_ms=job.opened_ms,
        closed_ms=job.closed_ms,
    )
    return (*job.runs, ended)[1 - RUNS_MAX :]


def abandoned(job: Job) -> Verdict | None:
    """Return the verdict of a run that ends because no node is left to re-form with."""
    if job.next_arrival == 0:
        seconds, cause = job.spec.join_timeout_ms / 1000, VerdictCause.TOO_FEW_NODES
        text = f"no agent came within {seconds:g} s after the job was created"
        return Verdict(cause, job.round_number, None, text, consequence=Consequence.ABANDONED)
    verdict = job.verdict
    if verdict is None or verdict.round != job.round_number:
        return verdict
    if verdict.consequence is not Consequence.REFORMED:
        return verdict
    return replace(verdict, consequence=Consequence.ABANDONED)


def close(draft: Draft, job: Job, outcome: Outcome, verdict: Verdict | None) -> None:
    """Give the run its outcome, and send it to every node.

    Args:
        draft: the step.
        job: the job, whose run ends.
        outcome: how it ends.
        verdict: why; None keeps the verdict of the latest round that failed.
    """
    job_id, now_ms, round = job.job_id, draft.now_ms, job.round
    verdict = verdict or job.verdict
    history = job.history
    if round is not None and (not history or history[-1].number != round.header.number):
        reason = RoundReason.SUCCEEDED if outcome is Outcome.SUCCEEDED else RoundReason.CLOSED
        failed = verdict if outcome is Outcome.FAILED else None
        ended = replace(round, stop_ms=round.stop_ms or now_ms)
        history = _with_summary(job, ended, reason, failed)
    draft.put_job(
        replace(
            job,
            phase=next_phase(job, PhaseEvent.CLOSE),
            outcome=outcome,
            verdict=verdict,
            closed_ms=now_ms,
            history=history,
            round=None,
        )
    )
    for node in draft.nodes_of(job_id):
        draft.put_node(replace(node, member=False, assignment=None))
    for kind in (
        DeadlineKind.FORMING,
        DeadlineKind.START,
        DeadlineKind.STOP,
        DeadlineKind.GROWTH,
        DeadlineKind.DRAIN,
        DeadlineKind.CULPRIT,
        DeadlineKind.HANG,
        DeadlineKind.ABANDON,
    ):
        draft.set_deadline(kind, job_id, None)
    draft.set_deadline(DeadlineKind.FORGET, job_id, now_ms + REMEMBERED_MS)
    failed = None if outcome is Outcome.SUCCEEDED else verdict
    also = () if failed is None else (("cause", failed.cause.value),)
    why = "" if failed is None else failed.text
    draft.emit(job_id, "run_closed", also, run=job.run, outcome=outcome.value, why=why)
