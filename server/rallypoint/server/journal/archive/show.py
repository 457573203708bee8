"""Records for a reader: only those about a job, and without what is secret.

A token lets its holder act as a worker, and the id of a session as its agent, so both are left out.
Values of keys and payloads of barriers are the user's own; a bug report does not need them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from rallypoint.journal.v1 import batch_pb2
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.codec.batches import decode_batch

_JOB = "job_id"
_SESSION = "session"
_SESSION_BYTES = 16


def describe_records(
    contents: Contents, *, job_id: str = "", has_values: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield each record as a value of JSON, oldest first.

    Args:
        contents: the journal.
        job_id: only records about this job; empty: all.
        has_values: show values of keys and payloads of barriers, not only their sizes.

    Raises:
        JournalUnreadable: when a batch is damaged, or a newer version has written it.
    """
    for number, payload in enumerate(contents.payloads, 1):
        decode_batch(payload)
        batch = batch_pb2.Batch.FromString(payload)
        for record in batch.records:
            kind = record.WhichOneof("kind")
            content = getattr(record, kind)
            if job_id and not _narrow(content, job_id):
                continue
            found = json_format.MessageToDict(content, preserving_proto_field_name=True)
            _redact(content, found, has_values=has_values)
            at = datetime.fromtimestamp(batch.unix_ms / 1000, UTC)
            yield {
                "batch": number,
                "at": at.isoformat("T", "milliseconds"),
                "now_ms": batch.now_ms,
                "kind": kind,
                "record": found,
            }


def _narrow(message: Message, job_id: str) -> bool:
    """Take parts about other jobs out of lists; return whether anything is about this one."""
    is_about = False
    for field, value in message.ListFields():
        if field.name == _JOB and field.type == FieldDescriptor.TYPE_STRING:
            is_about |= value == job_id
        elif field.message_type is None:
            continue
        elif not field.is_repeated:
            is_about |= _narrow(value, job_id)
        elif _JOB in field.message_type.fields_by_name:
            kept = [one for one in value if one.job_id == job_id]
            del value[:]
            value.extend(kept)
            is_about |= bool(kept)
    return is_about


def _redact(message: Message, found: dict[str, Any], *, has_values: bool) -> None:
    """Replace what is secret in the JSON of a message."""
    for field, value in message.ListFields():
        if field.name == _SESSION and field.type == FieldDescriptor.TYPE_STRING:
            # As readers of the API and the log see it.
            digest = hashlib.blake2s(value.encode(), digest_size=_SESSION_BYTES)
            found[field.name] = digest.hexdigest()
        elif field.GetOptions().debug_redact and not (has_values and isinstance(value, bytes)):
            found[field.name] = "(hidden)" if isinstance(value, str) else f"({len(value)} bytes)"
        elif field.message_type is not None and field.is_repeated:
            for one, shown in zip(value, found[field.name], strict=True):
                _redact(one, shown, has_values=has_values)
        elif field.message_type is not None:
            _redact(value, found[field.name], has_values=has_values)
