"""Requests of operators that were carried out: another attempt changes nothing."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages.inputs import Operation
from rallypoint.server.core.messages.records import OperationDone
from rallypoint.server.core.model.job import OPERATIONS_MAX, Job
from rallypoint.server.core.state.draft import Draft


def was_done(job: Job, operation: Operation) -> bool:
    """Return whether an earlier attempt of this request was carried out."""
    return bool(operation.request_id) and operation.request_id in job.operations


def note_done(draft: Draft, operation: Operation) -> None:
    """Remember the request; the oldest one is forgotten beyond the limit."""
    job = draft.job(operation.job_id)
    if job is None or not operation.request_id:
        return
    draft.put_job(replace(job, operations=with_operation(job.operations, operation.request_id)))
    draft.records.append(OperationDone(job.job_id, operation.request_id))


def with_operation(known: tuple[str, ...], request_id: str) -> tuple[str, ...]:
    """Return the remembered requests with another one."""
    return (*known, request_id)[-OPERATIONS_MAX:]
