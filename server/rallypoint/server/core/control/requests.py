"""Requests of operators that were carried out: another attempt changes nothing."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages.inputs import CreateJob, DeleteJob, Operation
from rallypoint.server.core.messages.records import OperationDone
from rallypoint.server.core.model.job import OPERATIONS_MAX
from rallypoint.server.core.state.draft import Draft


def was_done(draft: Draft, operation: Operation) -> bool:
    """Return whether an earlier attempt of this request was carried out.

    What was done to a job that is gone matters to an attempt to create or delete it: there is
    nothing to do again. Any other attempt has nothing left to act on.
    """
    if not operation.request_id:
        return False
    job = draft.job(operation.job_id)
    if job is not None:
        return operation.request_id in job.operations
    is_of_jobs = isinstance(operation, CreateJob | DeleteJob)
    return is_of_jobs and operation.request_id in draft.gone(operation.job_id).operations


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
