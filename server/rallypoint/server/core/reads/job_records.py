"""What each record means for the job that it is about.

A replay of the journal and the notes of a turn apply a record with the same code, so what a record
implies is not noted again.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.control.requests import with_operation
from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.messages.records import (
    DrainRequested,
    DrainRequestEnded,
    JobUpdated,
    NodeHealthChanged,
    OperationDone,
    PauseEnded,
    RoundSealed,
    RoundSettled,
    RoundStopped,
    RunClosed,
    RunOpened,
)
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Round
from rallypoint.server.core.rounds.drains import with_request, without_request
from rallypoint.server.core.rounds.ranks import slots_of
from rallypoint.server.core.rounds.settling import with_run
from rallypoint.server.core.verdicts.health import with_health

OperationRecord = (
    DrainRequested | DrainRequestEnded | NodeHealthChanged | JobUpdated | OperationDone | PauseEnded
)
"""What operators do, and the health of nodes."""
JobRecord = RoundSealed | RoundStopped | RoundSettled | RunClosed | OperationRecord
"""The records that change a job that exists."""


def open_from(known: Job | None, record: RunOpened) -> Job:
    """Return the job once a run was opened, or was taken over with other facts.

    Args:
        known: the job as it was; None when there was none.
        record: the opened run.
    """
    if known is not None and known.run == record.run and known.phase is not Phase.CLOSED:
        opened = known
    elif known is None:
        opened = Job(record.job_id, record.run, record.spec, 0, rounds_before=record.round_number)
    else:
        opened = Job(
            record.job_id,
            record.run,
            record.spec,
            0,
            rounds_before=record.round_number,
            history=known.history,
            runs=known.runs if known.closed_ms is None else with_run(known),
            health=known.health,
            fences=known.fences,
            unknown_past_until_ms=known.unknown_past_until_ms,
        )
    return replace(
        opened,
        run=record.run,
        since_epoch=record.since_epoch,
        spec=record.spec,
        launch_id=record.launch_id,
        round_number=record.round_number,
        counts=record.counts,
        drain_requests=record.drain_requests,
        updated=record.updated,
        spec_revision=record.spec_revision,
        operations=record.operations,
    )


def apply_job_record(job: Job, record: JobRecord) -> Job:
    """Return the job after one more record.

    Raises:
        BrokenInvariant: when the record does not fit the job.
    """
    match record:
        case RoundSealed(header=header, members=members):
            return replace(
                job,
                phase=Phase.RUNNING,
                round_number=header.number,
                round=Round(header, members, 0, None),
                slots=slots_of(members, header.group_world_size),
            )
        case RoundStopped(reason=reason, note=note):
            if job.round is None:
                raise BrokenInvariant(job.job_id, "a round was stopped that does not run")
            round = replace(job.round, stop_reason=reason, stop_note=note)
            return replace(job, phase=Phase.STOPPING, round=round)
        case RoundSettled():
            return replace(
                job,
                phase=Phase.FORMING,
                round=None,
                next_reason=record.reason,
                counts=record.counts,
                backoff_until_ms=record.backoff_until_ms,
            )
        case RunClosed(outcome=outcome, verdict=verdict):
            return replace(job, phase=Phase.CLOSED, round=None, outcome=outcome, verdict=verdict)
        case _:
            return _apply_operation(job, record)


def _apply_operation(job: Job, record: OperationRecord) -> Job:
    match record:
        case NodeHealthChanged(health=health):
            return replace(job, health=with_health(job.health, health))
        case DrainRequested(request=request):
            return replace(job, drain_requests=with_request(job.drain_requests, request))
        case DrainRequestEnded(name=name):
            return replace(job, drain_requests=without_request(job.drain_requests, name))
        case JobUpdated(spec=spec, fields=fields, revision=revision):
            return replace(job, spec=spec, updated=fields, spec_revision=revision)
        case PauseEnded(at_ms=at_ms):
            return replace(job, backoff_until_ms=at_ms)
        case OperationDone(request=request):
            return replace(job, operations=with_operation(job.operations, request))
