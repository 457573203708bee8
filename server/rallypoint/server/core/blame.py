"""Who is to blame for the end of a round: what failed first, where and why.

Decided from the order of arrival and from cause, never from wall clocks. A lost node explains the
failures of its peers, even when a peer's broken connection was reported first.
"""

from __future__ import annotations

from rallypoint.server.core.model import (
    Departure,
    FailedWorker,
    Round,
    RoundReason,
    Verdict,
    VerdictCause,
    WorkerExit,
)

EXPLAINS_MS = 1_000
"""A node explains its peers' failures if it was gone at most this long after the first of them:
the break of a connection can reach a peer before it reaches the coordinator."""

SIGNAL_NAMES = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM",
    15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip


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
    # A draining node whose workers had begun to leave: the connections to them broke then.
    return round.drain_began


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
