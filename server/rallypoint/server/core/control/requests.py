"""Requests of operators that were carried out: another attempt changes nothing."""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec.structs import replace

from rallypoint.server.core.messages.inputs import CreateJob, DeleteJob, Operation
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.job import OPERATIONS_MAX
from rallypoint.server.core.state.draft import Draft


def was_done(draft: Draft, operation: Operation) -> bool:
    """Return whether an earlier attempt of this request was carried out.

    What was done to a job that is gone matters to an attempt to create or delete it: there is
    nothing to do again. Any other attempt has nothing left to act on.
    """
    return bool(operation.request_id) and _key_of(operation) in _known(draft, operation)


def check_id(draft: Draft, operation: Operation) -> Refusal | None:
    """Refuse a request whose id belongs to another one: it would be taken for a repetition."""
    ids = {key.partition(" ")[0] for key in _known(draft, operation)}
    if not operation.request_id or operation.request_id not in ids:
        return None
    return Refusal(RefusalKind.REQUEST_ID_REUSED, (("request_id", operation.request_id),))


def _known(draft: Draft, operation: Operation) -> tuple[str, ...]:
    job = draft.job(operation.job_id)
    if job is not None:
        return job.operations
    if isinstance(operation, CreateJob | DeleteJob):
        return draft.gone(operation.job_id).operations
    return ()


def _key_of(operation: Operation) -> str:
    """Return what is remembered of a request: its id, which has no spaces, and a digest of it."""
    fields = msgspec.to_builtins(replace(operation, request_id=""), order="deterministic")
    content = type(operation).__name__.encode() + msgspec.json.encode(fields)
    return f"{operation.request_id} {sha256(content).hexdigest()[:16]}"


def note_done(draft: Draft, operation: Operation) -> None:
    """Remember the request; the oldest one is forgotten beyond the limit."""
    job = draft.job(operation.job_id)
    if job is None or not operation.request_id:
        return
    key = _key_of(operation)
    draft.put_job(replace(job, operations=(*job.operations, key)[-OPERATIONS_MAX:]))
