"""How much memory a record of the journal takes."""

from __future__ import annotations

from rallypoint.server.core.keyspace.keyspace import OBJECT_BYTES, size_of, size_of_answer
from rallypoint.server.core.messages.records import (
    BarrierArrived,
    EventsLogged,
    JobNoted,
    KeysWritten,
    NodeJoined,
    RoundSealed,
    RunClosed,
)
from rallypoint.server.core.model.barrier import Arrival, Participant
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.verdict import FailureGroup, Verdict
from rallypoint.server.core.model.worker import FailedWorker
from rallypoint.server.core.reads.replay import (
    BarrierSnapshot,
    JobSnapshot,
    JournalRecord,
    KeysRestored,
)
from rallypoint.server.core.state.holding import size_of_opening

EVENT_BYTES = 512
"""Memory of an event, about."""
NODE_BYTES = 1_024
MEMBER_BYTES = 256
SUMMARY_BYTES = 1_536
"""Memory of a round or a run that has ended."""


def weight_of(record: JournalRecord) -> int:
    """Return the bytes of what grows with a record; any other record is small."""
    match record:
        case KeysWritten(changes=changes, answer=answer):
            changed = sum(size_of(change.place, change.entry) for change in changes)
            return changed + size_of_answer(answer)
        case KeysRestored(entries=entries, changes=changes, requests=requests):
            kept = sum(size_of(place, entry) for place, entry in entries)
            changed = sum(size_of(change.place, change.entry) for change in changes)
            objects = len(entries) + len(changes) + len(requests)
            answered = sum(size_of_answer(answer) for _, answer in requests)
            return kept + changed + answered + objects * OBJECT_BYTES
        case BarrierArrived(key=key, expected=expected, participant=who, arrival=arrival):
            opening = 0 if expected is None else size_of_opening(key, expected)
            return opening + _bytes_of(who, arrival)
        case BarrierSnapshot(barrier=barrier, arrivals=arrivals):
            ended = [one for end in barrier.ends for one in end.arrivals]
            opening = size_of_opening(barrier.key, barrier.expected)
            return opening + sum(_bytes_of(*one) for one in (*arrivals, *ended))
        case EventsLogged(events=events):
            return len(events) * EVENT_BYTES
        case _:
            return _weight_of_job_record(record)


def _bytes_of(who: Participant, arrival: Arrival) -> int:
    return len(who.name.encode()) + len(arrival.payload)


def _weight_of_job_record(record: JournalRecord) -> int:
    match record:
        case JobNoted(changes=changes):
            round = changes.round
            verdict = _weight_of_verdict(changes.verdict)
            summaries = (len(changes.history) + len(changes.runs)) * SUMMARY_BYTES
            failed = 0 if round is None else _weight_of(round.failures, round.failure_groups)
            return verdict + summaries + failed
        case RunClosed(verdict=verdict_of_run):
            return _weight_of_verdict(verdict_of_run)
        case RoundSealed(members=members):
            return len(members) * MEMBER_BYTES
        case NodeJoined():
            return NODE_BYTES
        case JobSnapshot(job=job):
            return _weight_of_job(job)
        case _:
            return 0


def _weight_of_job(job: Job) -> int:
    round = job.round
    weight = (len(job.history) + len(job.runs)) * SUMMARY_BYTES + _weight_of_verdict(job.verdict)
    if round is not None:
        weight += len(round.members) * MEMBER_BYTES
        weight += _weight_of(round.failures, round.failure_groups)
    return weight


def _weight_of_verdict(verdict: Verdict | None) -> int:
    if verdict is None:
        return 0
    culprit = () if verdict.culprit is None else (verdict.culprit,)
    return _weight_of((*culprit, *verdict.collateral), verdict.groups)


def _weight_of(failures: tuple[FailedWorker, ...], groups: tuple[FailureGroup, ...]) -> int:
    """Return the bytes of what workers have written."""
    weight = sum(len(group.error) + len(group.key[1]) for group in groups)
    for failed in failures:
        exit, error = failed.exit, failed.exit.error
        weight += OBJECT_BYTES + len(exit.stderr_tail)
        weight += 0 if error is None else len(error.message) + len(error.traceback)
    return weight
