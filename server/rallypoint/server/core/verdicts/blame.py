"""Who is to blame for the end of a round: what failed first, where and why.

Decided from cause and from the order of arrival, never from wall clocks. A lost node explains the
failures of its peers, even when a peer's broken connection was reported first. So does a worker
that failed by a cause of its own; among equals the first to be reported is the culprit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rallypoint.server.core.folding import fold
from rallypoint.server.core.model import (
    FAILURES_MAX,
    Departure,
    FailedWorker,
    Round,
    RoundReason,
    Symptom,
    Verdict,
    VerdictCause,
    WorkerExit,
)
from rallypoint.server.core.symptoms import classify, find_error, find_stack

EXPLAINS_MS = 1_000
"""A node explains its peers' failures if it was gone at most this long after the first of them:
the break of a connection can reach a peer before it reaches the coordinator."""

SUSPICION = {Symptom.PRIMARY: 0, Symptom.UNKNOWN: 1, Symptom.VICTIM: 2}
"""Whom to blame first."""

SIGNAL_NAMES = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM",
    15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip


def describe_exit(exit: WorkerExit) -> str:
    """Return how a worker ended, in a few words: "exit code 1", "signal 9 (SIGKILL)"."""
    if exit.oom_killed:
        return "killed by the kernel for want of memory (OOM)"
    if exit.signal is not None:
        name = SIGNAL_NAMES.get(exit.signal)
        return f"signal {exit.signal} ({name})" if name else f"signal {exit.signal}"
    return f"exit code {exit.exit_code}"


def error_text(exit: WorkerExit) -> str:
    """Return the line that says what went wrong, or an empty string."""
    return find_error(exit)[:300]


def with_failure(round: Round, failed: FailedWorker, now_ms: int) -> Round:
    """Return the round with one more failed worker, whole while there is room for it.

    Where there is none, the last of the least suspect makes room: the culprit is found however many
    victims were reported before it.
    """
    is_alone = round.header.world_size == 1  # of whom could it be the victim?
    exit = failed.exit
    failed = replace(failed, symptom=Symptom.PRIMARY if is_alone else classify(exit))
    kept = (*round.failures, failed)
    if len(kept) > FAILURES_MAX:
        # What was reported first is part of the evidence and stays.
        out = max(range(1, len(kept)), key=lambda at: (SUSPICION[kept[at].symptom], at))
        kept = (*kept[:out], *kept[out + 1 :])
    return replace(
        round,
        failures=kept,
        failure_count=round.failure_count + 1,
        failure_groups=fold(
            round.failure_groups,
            rank=failed.rank,
            ended=describe_exit(exit),
            error=find_stack(exit) or error_text(exit),
            is_victim=failed.symptom is Symptom.VICTIM,
        ),
        first_failure_ms=now_ms if round.first_failure_ms is None else round.first_failure_ms,
    )


_VERBS = {
    RoundReason.NODE_LOST: "was lost",
    RoundReason.NODE_LEFT: "left",
    RoundReason.DRAINED: "was drained",
}


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
        verb = _VERBS[departure.reason]
        return Verdict(
            cause=cause,
            round=round.header.number,
            name=departure.name,
            text=f"node {departure.name} {verb}: {departure.text}",
            collateral=round.failures,
            collateral_count=round.failure_count,
            groups=round.failure_groups,
        )
    if round.stop_reason is RoundReason.DRAINED:
        drained = next(notice for notice in round.notices if notice.name is not None)
        return Verdict(
            VerdictCause.NODE_LEFT,
            round.header.number,
            drained.name,
            f"node {drained.name} was drained: {drained.reason}",
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
    return _blame_worker(round) if round.failures else None


def _blame_worker(round: Round) -> Verdict:
    culprit = _find_culprit(round.failures)
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
        collateral=tuple(failed for failed in round.failures if failed is not culprit),
        collateral_count=round.failure_count - 1,
        groups=round.failure_groups,
        evidence="; ".join(_find_evidence(round, culprit)),
    )


def _find_culprit(failures: Sequence[FailedWorker]) -> FailedWorker:
    """Return the first to be reported of those that are no victims, if there is one.

    One that ended without a word gives way to one that says why, unless it chose its exit code:
    every uncaught error ends with 1.
    """
    candidates = [failed for failed in failures if failed.symptom is not Symptom.VICTIM]
    first = (candidates or failures)[0]
    if first.symptom is Symptom.UNKNOWN and first.exit.exit_code in (1, None):
        causes = (failed for failed in candidates if failed.symptom is Symptom.PRIMARY)
        return next(causes, first)
    return first


def _find_evidence(round: Round, culprit: FailedWorker) -> list[str]:
    """Return what speaks for the culprit beside that it was reported first, and what does not."""
    evidence: list[str] = []
    first, exit = round.failures[0], culprit.exit
    if first is not culprit and first.symptom is Symptom.VICTIM:
        evidence.append(
            f"rank {first.rank} on node {first.name} was reported first, but with what the "
            f"failure of another worker looks like: {error_text(first.exit) or 'a broken pipe'}"
        )
    elif first is not culprit:
        evidence.append(
            f"rank {first.rank} on node {first.name} was reported first, but nothing says why it "
            f"ended with {describe_exit(first.exit)}"
        )
    elif culprit.symptom is Symptom.VICTIM:
        evidence.append(
            "it was reported first, but its error looks like the failure of another worker, and "
            "nobody reported a cause"
        )
    if exit.has_recorded_first and exit.error is not None:
        early_ms = (exit.error.before_exit_ms or 0) - (exit.signalled_before_ms or 0)
        evidence.append(
            f"it had written its error down {early_ms / 1000:.1f} s before it was told to stop"
        )
    return evidence


def explaining_departure(round: Round) -> Departure | None:
    """Return the departure that the round ended for, or None."""
    for departure in round.departures:
        if round.stop_reason is not RoundReason.WORKER_FAILED or round.stop_ms is None:
            return departure
        if departure.at_ms <= round.stop_ms + EXPLAINS_MS:
            return departure
    # A draining node whose workers had begun to leave explains what broken connections look like,
    # but no failure that has a cause of its own.
    has_cause = any(failed.symptom is Symptom.PRIMARY for failed in round.failures)
    return None if has_cause else round.drain_began


def is_drain(round: Round) -> bool:
    """Return whether the round ended because a node was drained."""
    departure = explaining_departure(round)
    if departure is None:
        return round.stop_reason is RoundReason.DRAINED
    return departure.reason is RoundReason.DRAINED


def find_trouble_ms(round: Round) -> int | None:
    """Return when the event came that ended the round: the loss itself, not when it was certain."""
    departure = explaining_departure(round)
    if departure is None or round.stop_ms is None:
        return round.stop_ms
    return min(round.stop_ms, departure.at_ms)
