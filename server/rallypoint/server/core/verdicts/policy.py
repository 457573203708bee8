"""The restart policy: what the end of a round costs, and whether the run continues.

A round is judged once, when every member is clean, lost or overdue. Only the event that stopped the
round can be charged: later failures are its consequences.
"""

from __future__ import annotations

from hashlib import blake2s

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Counts, Job
from rallypoint.server.core.model.round import REQUESTED, Round, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, Verdict, VerdictCause
from rallypoint.server.core.verdicts.blame import error_text, find_verdict, is_drain

FREE_RESTARTS = 2
"""Restarts in a row that are not delayed."""
BACKOFF_MS_MAX = 60_000
JITTER = 0.25
"""A pause is longer or shorter by up to this fraction."""
UNCAUGHT_CODE = 1
"""Python's exit code after an uncaught error."""
CRASH_YOUNG_MS = 10_000
"""A worker that ran no longer than this died early."""

_CHARGED = frozenset({VerdictCause.WORKER_FAILED, VerdictCause.START_FAILED, VerdictCause.HUNG})
"""Causes that cost a restart."""


class Judgement(Struct, frozen=True):
    """What follows a round that was stopped."""

    verdict: Verdict | None
    """None when nothing failed, as in a growth."""
    reason: RoundReason
    """Why the next round begins."""
    consequence: Consequence
    """RESTARTED or REFORMED when the run continues; any other ends it."""
    counts: Counts
    backoff_ms: int
    """Pause before the next round."""

    @property
    def goes_on(self) -> bool:
        """True when the run forms a new round."""
        return self.consequence in (Consequence.RESTARTED, Consequence.REFORMED)


def judge(job: Job, round: Round, now_ms: int, *, is_incurable: bool = False) -> Judgement:
    """Decide the consequence of the stopped `round` for the run.

    Args:
        job: the job with its counts as they were while the round ran.
        round: the round, stopped, with every member clean, lost or overdue.
        now_ms: journal time of the decision.
        is_incurable: a node that the run needs could not start its workers, and never will.
    """
    verdict = find_verdict(round, is_final=True)
    ended_ms = round.stop_ms if round.stop_ms is not None else now_ms
    has_advanced = round.step > job.counts.step
    made_progress = has_advanced or ended_ms - round.sealed_ms >= job.spec.progress_after_ms
    counts = job.counts.after_progress() if made_progress else job.counts
    if has_advanced:
        counts = replace(counts, step=round.step)
    kept = Judgement(
        verdict=verdict,
        reason=round.stop_reason or RoundReason.UNKNOWN,
        consequence=Consequence.REFORMED,
        counts=counts,
        backoff_ms=0,
    )
    if round.stop_reason is RoundReason.GROWTH and verdict is None:
        return replace(kept, counts=replace(counts, growths=counts.growths + 1))
    if round.stop_reason in REQUESTED and verdict is None:
        return kept
    if verdict is None or verdict.cause not in _CHARGED:
        return _reform(kept, job.spec, round)
    if round.stop_reason in REQUESTED:
        return replace(kept, verdict=None)
    if round.stop_reason is RoundReason.GROWTH:
        grown = replace(counts, growths=counts.growths + 1)
        return replace(kept, verdict=None, counts=grown)
    if is_incurable and verdict.cause is VerdictCause.START_FAILED:
        return _end_at_once(kept, verdict)
    return _charge(kept, job, verdict)


def _reform(kept: Judgement, spec: JobSpec, round: Round) -> Judgement:
    """Re-form without charging a restart, up to `max_reformations` times in a row."""
    verdict = kept.verdict
    if is_drain(round):
        return _drain(kept, spec, round)
    counts = replace(kept.counts, reformations=kept.counts.reformations + 1)
    kept = replace(kept, counts=counts)
    if counts.reformations > spec.max_reformations:
        text = f"{spec.max_reformations} re-formations in a row without progress"
        return _give_up(kept, round, text)
    reason = kept.reason
    if verdict is not None and verdict.cause is VerdictCause.NODE_LOST:
        reason = RoundReason.NODE_LOST
    elif verdict is not None and verdict.cause is VerdictCause.NODE_LEFT:
        reason = RoundReason.NODE_LEFT
    return replace(kept, verdict=_with(verdict, Consequence.REFORMED), reason=reason)


def _drain(kept: Judgement, spec: JobSpec, round: Round) -> Judgement:
    """Re-form after a drain, up to `max_reformations` times per node.

    Drains are deliberate, so the limit is high: maintenance may drain every node several times.
    """
    counts = replace(kept.counts, drains=kept.counts.drains + 1)
    kept = replace(kept, counts=counts)
    drains_max = spec.max_reformations * spec.max_nodes
    if counts.drains > drains_max:
        return _give_up(kept, round, f"{drains_max} drains in a row without progress")
    again = _with(kept.verdict, Consequence.REFORMED)
    return replace(kept, verdict=again, reason=RoundReason.DRAINED)


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


def _end_at_once(kept: Judgement, verdict: Verdict) -> Judgement:
    """End the run with the restarts that it has left: each would fail like this one."""
    text = f"{verdict.text}; no restart can cure that"
    final = replace(verdict, text=text, consequence=Consequence.ENDED)
    return replace(
        kept, verdict=final, consequence=Consequence.ENDED, reason=RoundReason.WORKER_FAILED
    )


def _charge(kept: Judgement, job: Job, verdict: Verdict) -> Judgement:
    """Charge one restart, or end the run."""
    before = kept.counts
    signature = crash_signature(verdict)
    if not signature:
        repeats = 0
    elif signature == before.crash_signature:
        repeats = before.crash_repeats + 1
    else:
        repeats = 1
    consequence = _consequence_of(job, verdict, repeats)
    goes_on = consequence is Consequence.RESTARTED
    is_hang = verdict.cause is VerdictCause.HUNG
    counts = replace(
        before,
        restart_count=before.restart_count + (1 if goes_on else 0),
        streak=before.streak + 1,
        crash_signature=signature,
        crash_repeats=repeats,
    )
    backoff_ms = compute_backoff_ms(counts.streak, job.spec.restart_backoff_ms, job.job_id)
    return replace(
        kept,
        verdict=replace(verdict, consequence=consequence, repeats=repeats),
        consequence=consequence,
        counts=counts,
        backoff_ms=backoff_ms if goes_on else 0,
        reason=RoundReason.HUNG if is_hang else RoundReason.WORKER_FAILED,
    )


def _consequence_of(job: Job, verdict: Verdict, repeats: int) -> Consequence:
    """Return the consequence of a failure that can be charged."""
    spec, culprit = job.spec, verdict.culprit
    exit_code = None if culprit is None else culprit.exit.exit_code
    if exit_code in spec.no_requeue_exit_codes:
        return Consequence.NO_REQUEUE
    if exit_code in spec.no_retry_exit_codes:
        return Consequence.NOT_RETRYABLE
    if job.counts.restart_count >= spec.max_restarts:
        return Consequence.BUDGET_SPENT
    if 0 < spec.crash_loop <= repeats:
        return Consequence.CRASH_LOOP
    return Consequence.RESTARTED


def compute_backoff_ms(streak: int, base_ms: int, job_id: JobId) -> int:
    """Return the pause before the restart after the `streak`-th failure in a row (1 or more).

    The pause doubles from `base_ms` up to BACKOFF_MS_MAX. Jitter of a quarter keeps jobs that
    failed together from restarting together. The jitter is a hash of the arguments, not a random
    number, so that the same inputs always give the same decisions.
    """
    delayed = streak - FREE_RESTARTS
    if delayed <= 0 or base_ms == 0:
        return 0
    pause_ms = min(base_ms << min(delayed - 1, 16), BACKOFF_MS_MAX)
    digest = blake2s(f"{job_id}:{streak}".encode(), digest_size=4).digest()
    share = int.from_bytes(digest) / 0xFFFFFFFF  # 0 to 1
    return round(pause_ms * (1 - JITTER + 2 * JITTER * share))


def crash_signature(verdict: Verdict) -> str:
    """Return a signature that equal early deaths share, or "" for any other failure.

    Digits are left out of the error text: addresses, pids and times differ between equal errors.
    """
    if verdict.cause is VerdictCause.START_FAILED:
        return verdict.text
    exit = None if verdict.culprit is None else verdict.culprit.exit
    if exit is None or exit.ran_ms - exit.error_age_ms > CRASH_YOUNG_MS:
        return ""
    code = exit.exit_code
    if exit.has_recorded_first:
        code = UNCAUGHT_CODE  # what it would have ended with; the agent's signal came first
    elif exit.signal is not None:
        return ""
    error = "".join(char for char in error_text(exit) if not char.isdigit())
    return f"{code}:{error}"


def _with(verdict: Verdict | None, consequence: Consequence) -> Verdict | None:
    return None if verdict is None else replace(verdict, consequence=consequence)


def describe_consequence(verdict: Verdict) -> str:
    """Return the consequence in a few words, or "" while it is undecided."""
    return {
        Consequence.UNDECIDED: "",
        Consequence.RESTARTED: "restarted",
        Consequence.REFORMED: "re-formed without charging a restart",
        Consequence.BUDGET_SPENT: "no restarts are left",
        Consequence.CRASH_LOOP: f"the same failure {verdict.repeats} times in a row, each "
        f"within {CRASH_YOUNG_MS // 1000} s of the start (--crash-loop)",
        Consequence.NOT_RETRYABLE: "its exit code is not retried (--no-retry-exit-codes)",
        Consequence.NO_REQUEUE: "its exit code ends the job for good (--no-requeue-exit-codes)",
        Consequence.ENDED: "",
        Consequence.ABANDONED: "no node was left to re-form with",
    }[verdict.consequence]
