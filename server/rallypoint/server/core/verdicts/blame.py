"""Finds what failed first in a round, where and why.

The verdict follows from causes and from the order of failures. A worker fails when it records its
error, else when it ends; between nodes the ages of failures are compared, never wall clocks. They
grow while journal time stands, see `with_older_failures`. A lost node explains the failures of its
peers, even when a peer's broken connection was reported first. So does a worker with its own cause.
Among equals, the first one to fail is the culprit.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from rallypoint.base.exit_codes import find_signal_name
from rallypoint.base.ranges import Range, add_to_ranges, is_in_ranges, remove_from_ranges
from rallypoint.base.values import describe_in_sentence
from rallypoint.server.core.model.network import are_many
from rallypoint.server.core.model.round import (
    FAILURES_MAX,
    Departure,
    Hang,
    Round,
    RoundReason,
)
from rallypoint.server.core.model.verdict import FailureGroup, Verdict, VerdictCause
from rallypoint.server.core.model.worker import FailedWorker, Symptom, WorkerExit
from rallypoint.server.core.verdicts.folding import Status, fold, refold, unfold
from rallypoint.server.core.verdicts.symptoms import (
    classify,
    find_error,
    find_last_words,
    find_stack,
)
from rallypoint.server.core.verdicts.timeouts import is_absent_named

EXPLAINS_MS = 1_000
"""A departure explains failures of peers that were reported up to this long before it: a peer can
notice a broken connection before the coordinator does."""

OUTAGE_MS = 2_000
"""Nodes that are lost within this time have one cause: of a silent one, it is only known between
which two heartbeats it fell silent."""

SLOW_END_MS = 1_000
"""A worker that ends so long after its error had a slow clean-up, which is worth a word."""

ERROR_CHARS_MAX = 300
"""Characters of an error in a sentence; the full error is kept."""

SUSPICION = {Symptom.PRIMARY: 0, Symptom.UNKNOWN: 1, Symptom.VICTIM: 2}
"""The lowest number is the most suspect."""


def describe_exit(exit: WorkerExit) -> str:
    """Return how a worker failed, in a few words: "exit code 1", "signal 9 (SIGKILL)"."""
    if not exit.has_ended:
        return "error recorded, still running"
    if exit.oom_killed:
        return "killed by the kernel's OOM killer"
    if exit.has_recorded_first or exit.exit_code == 0:
        return f"error recorded, then {_describe_status(exit)}"
    return _describe_status(exit)


def _describe_status(exit: WorkerExit) -> str:
    if exit.signal is not None:
        name = find_signal_name(exit.signal)
        return f"signal {exit.signal} ({name})" if name else f"signal {exit.signal}"
    return f"exit code {exit.exit_code}"


def error_text(exit: WorkerExit) -> str:
    """Return the line that says what went wrong, or an empty string.

    Without one, the last line that the worker wrote, named as that. It has no full stop: other
    clauses may follow.
    """
    error, last = find_error(exit), find_last_words(exit)
    text = (f"last output: {last}" if last else error)[:ERROR_CHARS_MAX].rstrip()
    return text if text.endswith("..") else text.removesuffix(".")


def with_failures(round: Round, failed: Sequence[FailedWorker], now_ms: int) -> Round:
    """Return the round with more failed workers.

    The round keeps FAILURES_MAX failures whole. Beyond that, the latest of the least suspect
    failures are dropped, so any number of victims can be reported before the culprit, and the first
    failure is kept even when its report comes late.

    Args:
        round: the round in which they failed.
        failed: in the order of their report; at least one.
        now_ms: journal time.
    """
    is_alone = round.header.world_size == 1  # a worker without peers cannot be a victim
    groups, unlisted = round.failure_groups, round.unlisted_ranks
    kept = list(round.failures)
    for one in failed:
        exit, symptom = one.exit, Symptom.PRIMARY if is_alone else classify(one.exit)
        kept.append(replace(one, symptom=symptom))
        before = groups
        groups = fold(
            groups,
            rank=one.rank,
            ended=describe_exit(exit),
            status=Status(exit.exit_code, exit.signal),
            error=_fold_text(exit),
            is_victim=symptom is Symptom.VICTIM,
        )
        if groups is before:  # all are taken
            unlisted = add_to_ranges(unlisted, one.rank)
        else:
            unlisted = _find_unlisted(unlisted, groups, one.rank)
    return replace(
        round,
        failures=_keep_suspects(kept),
        failure_count=round.failure_count + len(failed),
        failure_groups=groups,
        unlisted_ranks=unlisted,
        first_failure_ms=now_ms if round.first_failure_ms is None else round.first_failure_ms,
    )


def _keep_suspects(failures: Sequence[FailedWorker]) -> tuple[FailedWorker, ...]:
    """Return the first report, which is part of the evidence, and the most suspect of the others.

    Both in the order of their reports.
    """
    others = range(1, len(failures))
    most = sorted(others, key=lambda at: _rank_suspect(failures[at]))[: FAILURES_MAX - 1]
    return tuple(failures[at] for at in (0, *sorted(most)))


def with_end(round: Round, rank: int, exit: WorkerExit) -> Round:
    """Return the round once a worker has ended that had failed while it ran.

    Its failure stays what it was: the first error that it recorded, and what that showed.
    """
    failures = tuple(
        replace(failed, exit=exit.after_record(failed.exit)) if failed.rank == rank else failed
        for failed in round.failures
    )
    whole = next((failed.exit for failed in failures if failed.rank == rank), exit)
    groups = refold(
        round.failure_groups,
        rank=rank,
        ended=describe_exit(whole),
        status=Status(whole.exit_code, whole.signal),
        error=_fold_text(whole),
    )
    unlisted = _find_unlisted(round.unlisted_ranks, groups, rank)
    return replace(round, failures=failures, failure_groups=groups, unlisted_ranks=unlisted)


def with_older_failures(round: Round, by_ms: int) -> Round:
    """Return the round after journal time has stood for so long: known failures became older.

    So the ages of failures that are reported later can be compared with theirs.
    """
    if by_ms <= 0 or not round.failures:
        return round
    failures = tuple(
        replace(failed, exit=replace(failed.exit, at_ms=(failed.exit.at_ms or 0) - by_ms))
        for failed in round.failures
    )
    return replace(round, failures=failures)


def without_failure(round: Round, rank: int) -> Round | None:
    """Return the round once a worker has ended with 0 that had recorded an error while it ran.

    None: the round has too many failures to list this one.
    """
    failures = tuple(failed for failed in round.failures if failed.rank != rank)
    groups = unfold(round.failure_groups, rank)
    if len(failures) == len(round.failures) or groups is None:
        return None
    count = round.failure_count - 1
    return replace(
        round,
        failures=failures,
        failure_count=count,
        failure_groups=groups,
        first_failure_ms=round.first_failure_ms if count else None,
    )


def _find_unlisted(
    unlisted: tuple[Range, ...], groups: tuple[FailureGroup, ...], rank: int
) -> tuple[Range, ...]:
    """Return the ranks that have failed and are in none of the groups, which may have `rank`."""
    if any(is_in_ranges(group.ranks, rank) for group in groups):
        return remove_from_ranges(unlisted, rank) if unlisted else ()
    return add_to_ranges(unlisted, rank)


def _rank_suspect(failed: FailedWorker) -> tuple[int, int]:
    """Return a key that sorts the most suspect failure first, then the earliest."""
    return SUSPICION[failed.symptom], failed.exit.occurred_ms


def _fold_text(exit: WorkerExit) -> str:
    return find_stack(exit) or error_text(exit)


_OF_WORKERS = frozenset({RoundReason.WORKER_FAILED, RoundReason.HUNG})
"""A round that its workers have ended; a node that is lost long after explains nothing."""
_VERBS = {
    RoundReason.NODE_LOST: "was lost",
    RoundReason.NODE_LEFT: "left",
    RoundReason.DRAINED: "was drained",
}


def find_verdict(round: Round, *, is_final: bool = False) -> Verdict | None:
    """Return what failed first in the round, as known now, or None.

    The consequence is undecided. The verdict is provisional while the round stops: a node that is
    lost later explains the failures of its peers, and a worker that failed earlier can be reported
    later. Until then no text says that a worker failed first.

    Args:
        round: the round.
        is_final: every member is clean, lost or overdue, so no other failure can be reported.
    """
    departure = explaining_departure(round)
    if departure is not None:
        return _judge_departure(round, departure)
    if round.stop_reason is RoundReason.DRAINED:
        return _judge_drain(round)
    if round.start_failure is not None:
        name, reason, _ = round.start_failure
        text = f"node {name} could not start its workers: {reason}"
        return Verdict(VerdictCause.START_FAILED, round.header.number, name, text)
    if round.stop_reason is RoundReason.START_OVERDUE:
        first = round.overdue[0] if round.overdue else None
        text = f"the workers on {', '.join(round.overdue)} did not start in time"
        return Verdict(VerdictCause.START_OVERDUE, round.header.number, first, text)
    if round.stop_reason is RoundReason.HUNG and round.hang is not None:
        return _judge_hang(round, round.hang)
    if round.hang is not None and is_absent_named(round):
        return _judge_absent(round, round.hang)
    return _judge_workers(round, is_final=is_final) if round.failures else None


def _judge_departure(round: Round, departure: Departure) -> Verdict:
    is_lost = departure.reason is RoundReason.NODE_LOST
    text = f"node {departure.name} {_VERBS[departure.reason]}: {departure.text}"
    return Verdict(
        cause=VerdictCause.NODE_LOST if is_lost else VerdictCause.NODE_LEFT,
        round=round.header.number,
        name=departure.name,
        text=(_describe_outage(round) if is_lost else "") or text,
        collateral=round.failures,
        collateral_count=round.failure_count,
        groups=round.failure_groups,
    )


def _describe_outage(round: Round) -> str:
    """Return that many nodes were lost at once, which no single one of them explains; or ""."""
    lost = [one for one in round.departures if one.reason is RoundReason.NODE_LOST]
    first = min(lost, key=lambda one: one.at_ms)
    at_once = [one for one in lost if one.at_ms - first.at_ms <= OUTAGE_MS]
    count, size = len(at_once), round.header.group_world_size
    if count == len(round.departures):
        count = min(count + round.unlisted_departures, size)
    if not are_many(count, size):
        return ""
    span_s = max(0.1, (max(one.at_ms for one in at_once) - first.at_ms) / 1000)
    return (
        f"{count:,} of {size:,} nodes were lost within {span_s:.1f} s: suspect the network or a "
        f"switch ({first.name} first: {first.text})"
    )


def _judge_drain(round: Round) -> Verdict:
    drained = next(notice for notice in round.notices if notice.name is not None)
    text = f"node {drained.name} was drained: {drained.reason}"
    return Verdict(VerdictCause.NODE_LEFT, round.header.number, drained.name, text)


def _judge_hang(round: Round, hang: Hang) -> Verdict:
    text = f"{describe_hang(hang)}{_describe_found(hang)}"
    return Verdict(VerdictCause.HUNG, round.header.number, hang.name or None, text)


def _judge_absent(round: Round, hang: Hang) -> Verdict:
    return Verdict(
        VerdictCause.HUNG,
        round.header.number,
        hang.name,
        f"a collective timed out{_describe_found(hang)}",
        collateral=round.failures,
        collateral_count=round.failure_count,
        groups=round.failure_groups,
    )


def _describe_found(hang: Hang) -> str:
    """Return what the evidence says, and where; it begins with the rank if it names one."""
    place = f"on node {hang.name}, " if hang.name else ""
    return f": {place}{hang.text}" if hang.text else ""


def describe_hang(hang: Hang) -> str:
    """Return what a suspicion rests on, without the evidence."""
    still = describe_in_sentence(hang.suspected_ms - hang.since_ms)
    return f"no worker made progress for {still}"


def _judge_workers(round: Round, *, is_final: bool) -> Verdict:
    culprit = _find_culprit(round.failures)
    exit, error = culprit.exit, error_text(culprit.exit)
    after_ms = exit.ran_ms - exit.error_age_ms
    failed = "was reported first" if culprit is round.failures[0] else "failed"
    if is_final:
        failed = "failed first"
    text = (
        f"rank {culprit.rank} (local rank {exit.local_rank}, pid {exit.pid}) on node "
        f"{culprit.name} {failed}: {describe_exit(exit)}, {describe_in_sentence(after_ms, 1)} "
        f"after its start"
    )
    return Verdict(
        VerdictCause.WORKER_FAILED,
        round.header.number,
        culprit.name,
        f"{text}{'; ' if find_last_words(exit) else ': '}{error}" if error else text,
        culprit=culprit,
        collateral=tuple(failed for failed in round.failures if failed is not culprit),
        collateral_count=round.failure_count - 1,
        groups=round.failure_groups,
        evidence="; ".join(_find_evidence(round, culprit)),
    )


def _find_culprit(failures: Sequence[FailedWorker]) -> FailedWorker:
    """Return the first worker to fail that is not a victim, else the first one to fail.

    A worker that shows a cause takes precedence over one that shows none, unless the latter chose
    its exit code: every uncaught error ends with 1.
    """
    # Of failures at the same time, the one that was reported first.
    failures = sorted(failures, key=lambda failed: failed.exit.occurred_ms)
    candidates = [failed for failed in failures if failed.symptom is not Symptom.VICTIM]
    first = (candidates or failures)[0]
    if first.symptom is Symptom.UNKNOWN and first.exit.exit_code in (1, None):
        causes = (failed for failed in candidates if failed.symptom is Symptom.PRIMARY)
        return next(causes, first)
    return first


def _find_evidence(round: Round, culprit: FailedWorker) -> list[str]:
    """Return the evidence for or against the culprit besides the order of reports."""
    evidence: list[str] = []
    first, exit = round.failures[0], culprit.exit
    first_report = f"rank {first.rank} on node {first.name} was reported first"
    later_ms = first.exit.occurred_ms - exit.occurred_ms
    if culprit.symptom is not Symptom.VICTIM and _is_same_error(first, culprit):
        return []  # whichever is named, the cause is the same
    if culprit.symptom is Symptom.VICTIM:
        evidence.append(
            "it failed first; its error is typical of a lost peer, but no other worker reported a "
            "cause"
        )
    elif first is not culprit and first.symptom is Symptom.VICTIM:
        error = error_text(first.exit) or "a broken pipe"
        evidence.append(f"{first_report}, but its error is typical of a lost peer: {error}")
    elif first is not culprit and later_ms > 0:
        evidence.append(f"{first_report}, but it failed {later_ms / 1000:.3g} s later")
    elif first is not culprit:
        evidence.append(f"{first_report}, but it gave no cause ({describe_exit(first.exit)})")
    if exit.has_recorded_first and exit.error is not None:
        early_ms = (exit.error.before_exit_ms or 0) - (exit.signalled_before_ms or 0)
        evidence.append(
            f"it recorded its error {describe_in_sentence(early_ms, 1)} before the stop signal"
        )
    elif exit.has_ended and exit.error_age_ms >= SLOW_END_MS:
        evidence.append(
            f"it recorded its error {describe_in_sentence(exit.error_age_ms, 1)} before its end"
        )
    return evidence


def _is_same_error(first: FailedWorker, culprit: FailedWorker) -> bool:
    """Return whether another worker was reported first, with the same error."""
    error = error_text(culprit.exit)
    return first is not culprit and error != "" and error == error_text(first.exit)


def explaining_departure(round: Round) -> Departure | None:
    """Return the departure that ended the round, or None."""
    for departure in round.departures:
        if round.stop_reason not in _OF_WORKERS or round.stop_ms is None:
            return departure
        if departure.at_ms <= round.stop_ms + EXPLAINS_MS:
            return departure
    # When the workers of a draining node leave, their peers' connections break. That explains
    # victims, but not a failure with its own cause.
    has_cause = any(failed.symptom is Symptom.PRIMARY for failed in round.failures)
    return None if has_cause else round.drain_began


def is_drain(round: Round) -> bool:
    """Return whether the round ended because a node was drained."""
    departure = explaining_departure(round)
    if departure is None:
        return round.stop_reason is RoundReason.DRAINED
    return departure.reason is RoundReason.DRAINED


def find_disrupted_ms(round: Round) -> int | None:
    """Return when the event that ended the round happened, even if it was certain only later."""
    departure = explaining_departure(round)
    if departure is None or round.stop_ms is None:
        return round.stop_ms
    return min(round.stop_ms, departure.at_ms)
