"""What the end of a round means: what is charged, and whether the run goes on. The one policy.

One judgement per round, made when every member is clean, lost or overdue. Only the event that
stopped the round can be charged: failures that arrive later are its consequences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rallypoint.server.core.blame import error_text, find_verdict, is_drain
from rallypoint.server.core.model import (
    Consequence,
    Job,
    JobId,
    JobSpec,
    Round,
    RoundReason,
    Verdict,
    VerdictCause,
)

FREE_RESTARTS = 2
"""Restarts in a row that are not delayed."""
BACKOFF_MS_MAX = 60_000
JITTER = 0.25
"""A pause is longer or shorter by up to this share of it."""
CRASH_YOUNG_MS = 10_000
"""A worker that ran no longer than this died young."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What follows a round that was stopped."""

    verdict: Verdict | None
    """None when nothing failed, as for growth."""
    reason: RoundReason
    """Why the next round begins."""
    consequence: Consequence
    """RESTARTED or REFORMED: the run goes on; everything else ends it."""
    restart_count: int
    streak: int
    crash_signature: str
    crash_repeats: int
    reformations: int
    growths: int
    drains: int
    backoff_ms: int
    """Pause before the next round."""

    @property
    def goes_on(self) -> bool:
        """True when a new round is to be formed."""
        return self.consequence in (Consequence.RESTARTED, Consequence.REFORMED)


def judge(job: Job, round: Round, now_ms: int) -> Judgement:
    """Decide what the stopped `round` means for the run.

    Args:
        job: the job with its counts as they were while the round ran.
        round: the round, stopped, with every member clean, lost or overdue.
        now_ms: journal time of the decision.
    """
    verdict = find_verdict(round)
    ended_ms = round.stop_ms if round.stop_ms is not None else now_ms
    if ended_ms - round.sealed_ms >= job.spec.progress_ms:
        streak = crash_repeats = reformations = growths = drains = 0
        signature = ""
    else:
        streak, crash_repeats, reformations = job.streak, job.crash_repeats, job.reformations
        growths, drains, signature = job.growths, job.drains, job.crash_signature
    kept = Judgement(
        verdict=verdict,
        reason=round.stop_reason or RoundReason.UNKNOWN,
        consequence=Consequence.REFORMED,
        restart_count=job.restart_count,
        streak=streak,
        crash_signature=signature,
        crash_repeats=crash_repeats,
        reformations=reformations,
        growths=growths,
        drains=drains,
        backoff_ms=0,
    )
    if round.stop_reason is RoundReason.GROWTH and verdict is None:
        return replace(kept, growths=growths + 1)
    if verdict is None or verdict.cause not in (
        VerdictCause.WORKER_FAILED,
        VerdictCause.CANNOT_START,
    ):
        return _reform(kept, job.spec, round)
    if round.stop_reason is RoundReason.GROWTH:
        return replace(kept, verdict=None, growths=growths + 1)
    return _charge(kept, job, verdict)


def _reform(kept: Judgement, spec: JobSpec, round: Round) -> Judgement:
    """Go on without a charge, but not for ever."""
    verdict = kept.verdict
    if is_drain(round):
        return _drain(kept, spec, round)
    count = kept.reformations + 1
    if count > spec.max_reformations:
        text = f"{spec.max_reformations} re-formations in a row without progress"
        return replace(_give_up(kept, round, text), reformations=count)
    reason = kept.reason
    if verdict is not None and verdict.cause is VerdictCause.NODE_LOST:
        reason = RoundReason.NODE_LOST
    elif verdict is not None and verdict.cause is VerdictCause.NODE_LEFT:
        reason = RoundReason.NODE_LEFT
    return replace(
        kept, verdict=_with(verdict, Consequence.REFORMED), reformations=count, reason=reason
    )


def _drain(kept: Judgement, spec: JobSpec, round: Round) -> Judgement:
    """Go on after a drain; as often as a re-formation for every node, since each was asked for.

    All nodes may be taken out for maintenance one after the other, a few times over.
    """
    count, most = kept.drains + 1, spec.max_reformations * spec.max_nodes
    if count > most:
        return replace(
            _give_up(kept, round, f"{most} drains in a row without progress"), drains=count
        )
    again = _with(kept.verdict, Consequence.REFORMED)
    return replace(kept, verdict=again, reason=RoundReason.DRAINED, drains=count)


def _give_up(kept: Judgement, round: Round, text: str) -> Judgement:
    """End the run although nothing was charged."""
    verdict = kept.verdict
    if verdict is not None:
        text += f"; the last one because {verdict.text}"
    final = Verdict(
        VerdictCause.NO_PROGRESS,
        round.header.number,
        verdict.name if verdict else None,
        text,
        consequence=Consequence.ENDED,
    )
    return replace(kept, verdict=final, consequence=Consequence.ENDED)


def _charge(kept: Judgement, job: Job, verdict: Verdict) -> Judgement:
    """Charge one restart, or end the run."""
    streak = kept.streak + 1
    signature = crash_signature(verdict)
    if not signature:
        repeats = 0
    elif signature == kept.crash_signature:
        repeats = kept.crash_repeats + 1
    else:
        repeats = 1
    consequence = _consequence_of(job, verdict, repeats)
    goes_on = consequence is Consequence.RESTARTED
    return replace(
        kept,
        verdict=replace(verdict, consequence=consequence, repeats=repeats),
        consequence=consequence,
        restart_count=job.restart_count + (1 if goes_on else 0),
        streak=streak,
        crash_signature=signature,
        crash_repeats=repeats,
        backoff_ms=compute_backoff_ms(streak, job.spec.restart_backoff_ms, job.job_id)
        if goes_on
        else 0,
        reason=RoundReason.WORKER_FAILED,
    )


def _consequence_of(job: Job, verdict: Verdict, repeats: int) -> Consequence:
    """Return what follows a failure that is charged: why the run ends, else a restart."""
    spec, culprit = job.spec, verdict.culprit
    exit_code = None if culprit is None else culprit.exit.exit_code
    if exit_code in spec.no_requeue:
        return Consequence.NO_REQUEUE
    if exit_code in spec.no_retry:
        return Consequence.NOT_RETRYABLE
    if job.restart_count >= spec.max_restarts:
        return Consequence.BUDGET_SPENT
    if 0 < spec.crash_loop <= repeats:
        return Consequence.CRASH_LOOP
    return Consequence.RESTARTED


def compute_backoff_ms(streak: int, base_ms: int, job_id: JobId) -> int:
    """Return the pause before the restart after the `streak`-th failure in a row (1 or more).

    Doubles from `base_ms` up to BACKOFF_MS_MAX, give or take a quarter, so that jobs which a
    common cause took down do not come back as one. The jitter follows from its arguments: drawn at
    random, a replay of the same inputs would decide differently.
    """
    delayed = streak - FREE_RESTARTS
    if delayed <= 0 or base_ms == 0:
        return 0
    pause_ms = min(base_ms << min(delayed - 1, 16), BACKOFF_MS_MAX)
    share = _spread(f"{job_id}:{streak}") / 0xFFFFFFFF  # 0 to 1
    return round(pause_ms * (1 - JITTER + 2 * JITTER * share))


def _spread(text: str) -> int:
    """Return a number of 32 bits that near texts do not share: FNV-1a (Fowler, Noll, Vo) with the
    finalizer of MurmurHash3 (Appleby), since FNV alone hardly moves its high bits."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16


def crash_signature(verdict: Verdict) -> str:
    """Return what makes two early deaths the same, or "" for one that cannot be part of a loop.

    Digits are left out of the error text: addresses, pids and times differ between equal errors.
    """
    if verdict.cause is VerdictCause.CANNOT_START:
        return verdict.text
    culprit = verdict.culprit
    if culprit is None or culprit.exit.signal is not None or culprit.exit.ran_ms > CRASH_YOUNG_MS:
        return ""
    said = "".join(char for char in error_text(culprit.exit) if not char.isdigit())
    return f"{culprit.exit.exit_code}:{said}"


def _with(verdict: Verdict | None, consequence: Consequence) -> Verdict | None:
    return None if verdict is None else replace(verdict, consequence=consequence)


def describe_consequence(verdict: Verdict) -> str:
    """Return what followed the failure in a few words, or "" while it is open."""
    return {
        Consequence.UNDECIDED: "",
        Consequence.RESTARTED: "restarted",
        Consequence.REFORMED: "formed anew, nothing charged",
        Consequence.BUDGET_SPENT: "no restarts are left",
        Consequence.CRASH_LOOP: f"the same failure {verdict.repeats} times in a row, each "
        f"within {CRASH_YOUNG_MS // 1000} s of the start",
        Consequence.NOT_RETRYABLE: "an exit code that is not to be retried",
        Consequence.NO_REQUEUE: "an exit code after which the job is not to be started again",
        Consequence.ENDED: "",
    }[verdict.consequence]
