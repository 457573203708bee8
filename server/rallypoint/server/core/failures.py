"""What the end of a round means: who is to blame, what is charged, whether the run goes on.

One judgement per round, made when every member is clean, lost or overdue. Only the event that
stopped the round can be charged: failures that arrive later are its consequences. A lost node
explains the failures of its peers, so that a round which lost a node is not charged even when a
peer's broken connection was reported first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rallypoint.server.core.model import (
    Consequence,
    Departure,
    FailedWorker,
    Job,
    Round,
    RoundReason,
    Verdict,
    VerdictCause,
    WorkerExit,
)

PROGRESS_MS = 300_000
"""A round that lived this long has made progress: counts in a row start again."""
FREE_RESTARTS = 2
"""Restarts in a row that are not delayed."""
BACKOFF_MS_MAX = 60_000
CRASH_LOOP_REPEATS = 5
"""The same early death this often in a row ends the run."""
CRASH_YOUNG_MS = 10_000
"""A worker that ran no longer than this died young."""
REFORMATIONS_MAX = 10
"""Uncharged re-formations in a row without progress: uncharged is not unlimited."""
EXPLAINS_MS = 1_000
"""A node explains its peers' failures if it was gone at most this long after the first of them:
the break of a connection can reach a peer before it reaches the coordinator."""

SIGNAL_NAMES = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM",
    15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip


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
    backoff_ms: int
    """Pause before the next round."""

    @property
    def goes_on(self) -> bool:
        """True when a new round is to be formed."""
        return self.consequence in (Consequence.RESTARTED, Consequence.REFORMED)


def describe_exit(exit: WorkerExit) -> str:
    """Return how a worker ended, in a few words: "exit code 1", "signal 9 (SIGKILL)"."""
    if exit.signal is not None:
        name = SIGNAL_NAMES.get(exit.signal)
        return f"signal {exit.signal} ({name})" if name else f"signal {exit.signal}"
    return f"exit code {exit.exit_code}"


def error_text(exit: WorkerExit) -> str:
    """Return the last line that says what went wrong, or an empty string."""
    text = exit.error.message if exit.error is not None else exit.stderr_tail
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def find_verdict(round: Round) -> Verdict | None:
    """Return what failed first in the round, as far as is known now, or None.

    The consequence is left open. While the round is being stopped the finding is provisional: a
    node that turns out to be lost explains the failures of its peers.
    """
    departure = explaining_departure(round)
    if departure is not None:
        cause = (
            VerdictCause.NODE_LOST
            if departure.reason is RoundReason.NODE_LOST
            else VerdictCause.NODE_LEFT
        )
        verb = "was lost" if cause is VerdictCause.NODE_LOST else "left"
        return Verdict(
            cause=cause,
            round=round.header.number,
            name=departure.name,
            text=f"node {departure.name} {verb}: {departure.text}",
            collateral=round.failures,
            collateral_count=round.failure_count,
        )
    if round.refusal is not None:
        name, words = round.refusal
        return Verdict(
            VerdictCause.CANNOT_START,
            round.header.number,
            name,
            f"node {name} could not start its workers: {words}",
        )
    if round.stop_reason is RoundReason.START_OVERDUE:
        names = ", ".join(round.overdue)
        return Verdict(
            VerdictCause.START_OVERDUE,
            round.header.number,
            round.overdue[0] if round.overdue else None,
            f"workers were not started in time on {names}",
        )
    return _blame_worker(round, round.failures[0]) if round.failures else None


def _blame_worker(round: Round, culprit: FailedWorker) -> Verdict:
    exit = culprit.exit
    text = (
        f"rank {culprit.rank} (local rank {exit.local_rank}, pid {exit.pid}) on node "
        f"{culprit.name} failed first: {describe_exit(exit)}, {exit.ran_ms / 1000:.1f} s "
        f"after its start"
    )
    said = error_text(exit)
    return Verdict(
        VerdictCause.WORKER_FAILED,
        round.header.number,
        culprit.name,
        f"{text}: {said}" if said else text,
        culprit=culprit,
        collateral=round.failures[1:],
        collateral_count=round.failure_count - 1,
    )


def explaining_departure(round: Round) -> Departure | None:
    """Return the departure that the round ended for, or None."""
    for departure in round.departures:
        if round.stop_reason is not RoundReason.WORKER_FAILED or round.stop_ms is None:
            return departure
        if departure.at_ms <= round.stop_ms + EXPLAINS_MS:
            return departure
    return None


def find_trouble_ms(round: Round) -> int | None:
    """Return when the event came that ended the round: the loss itself, not when it was certain."""
    departure = explaining_departure(round)
    if departure is None or round.stop_ms is None:
        return round.stop_ms
    return min(round.stop_ms, departure.at_ms)


def judge(job: Job, round: Round, now_ms: int) -> Judgement:
    """Decide what the stopped `round` means for the run.

    Args:
        job: the job with its counts as they were while the round ran.
        round: the round, stopped, with every member clean, lost or overdue.
        now_ms: journal time of the decision.
    """
    verdict = find_verdict(round)
    ended_ms = round.stop_ms if round.stop_ms is not None else now_ms
    if ended_ms - round.sealed_ms >= PROGRESS_MS:
        streak = crash_repeats = reformations = growths = 0
        signature = ""
    else:
        streak, crash_repeats, reformations = job.streak, job.crash_repeats, job.reformations
        growths, signature = job.growths, job.crash_signature
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
        backoff_ms=0,
    )
    if round.stop_reason is RoundReason.GROWTH and verdict is None:
        return replace(kept, growths=growths + 1)
    if verdict is None or verdict.cause not in (
        VerdictCause.WORKER_FAILED,
        VerdictCause.CANNOT_START,
    ):
        return _reform(kept, round)
    if round.stop_reason is RoundReason.GROWTH:
        return replace(kept, verdict=None, growths=growths + 1)
    return _charge(kept, job, verdict)


def _reform(kept: Judgement, round: Round) -> Judgement:
    """Go on without a charge, but not for ever."""
    verdict, count = kept.verdict, kept.reformations + 1
    if count > REFORMATIONS_MAX:
        text = f"{REFORMATIONS_MAX} re-formations in a row without progress"
        if verdict is not None:
            text += f"; the last one because {verdict.text}"
        final = Verdict(
            VerdictCause.NO_PROGRESS,
            round.header.number,
            verdict.name if verdict else None,
            text,
            consequence=Consequence.ENDED,
        )
        return replace(kept, verdict=final, consequence=Consequence.ENDED, reformations=count)
    reason = kept.reason
    if verdict is not None and verdict.cause is VerdictCause.NODE_LOST:
        reason = RoundReason.NODE_LOST
    elif verdict is not None and verdict.cause is VerdictCause.NODE_LEFT:
        reason = RoundReason.NODE_LEFT
    return replace(
        kept, verdict=_with(verdict, Consequence.REFORMED), reformations=count, reason=reason
    )


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
    if job.restart_count >= job.spec.max_restarts:
        consequence = Consequence.BUDGET_SPENT
    elif repeats >= CRASH_LOOP_REPEATS:
        consequence = Consequence.CRASH_LOOP
    else:
        consequence = Consequence.RESTARTED
    goes_on = consequence is Consequence.RESTARTED
    return replace(
        kept,
        verdict=_with(verdict, consequence),
        consequence=consequence,
        restart_count=job.restart_count + (1 if goes_on else 0),
        streak=streak,
        crash_signature=signature,
        crash_repeats=repeats,
        backoff_ms=compute_backoff_ms(streak, job.spec.restart_backoff_ms) if goes_on else 0,
        reason=RoundReason.WORKER_FAILED,
    )


def compute_backoff_ms(streak: int, base_ms: int) -> int:
    """Return the pause before the restart after the `streak`-th failure in a row (1 or more)."""
    delayed = streak - FREE_RESTARTS
    if delayed <= 0 or base_ms == 0:
        return 0
    return min(base_ms << min(delayed - 1, 16), BACKOFF_MS_MAX)


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


def describe_consequence(consequence: Consequence) -> str:
    """Return what followed a failure in a few words, or "" while it is open."""
    return {
        Consequence.UNDECIDED: "",
        Consequence.RESTARTED: "restarted",
        Consequence.REFORMED: "formed anew, nothing charged",
        Consequence.BUDGET_SPENT: "no restarts are left",
        Consequence.CRASH_LOOP: f"the same failure {CRASH_LOOP_REPEATS} times in a row, each "
        f"within {CRASH_YOUNG_MS // 1000} s of the start",
        Consequence.ENDED: "",
    }[consequence]
