"""Records for a reader: only those about a job, and without what is secret.

A token lets its holder act as a worker, and the id of a session as its agent. Values of keys and
payloads of barriers are the user's own; a bug report does not need them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.codec.batches import decode_batch
from rallypoint.server.journal.codec.json_form import to_json

_JOB = "job_id"
_SESSION = "session"
_SESSION_BYTES = 16


def describe_records(contents: Contents, job_id: str = "") -> Iterator[dict[str, Any]]:
    """Yield each record as a value of JSON, oldest first.

    Args:
        contents: the journal.
        job_id: only records about this job; empty: all.

    Raises:
        JournalUnreadable: when a batch is damaged, or a newer version has written it.
    """
    for number, payload in enumerate(contents.payloads, 1):
        batch = decode_batch(payload)
        at = datetime.fromtimestamp(batch.unix_ms / 1000, UTC).isoformat("T", "milliseconds")
        for record in batch.records:
            [(kind, fields)] = to_json(record, redact=True).items()
            if job_id and not _narrow(fields, job_id):
                continue
            _hide_sessions(fields)
            yield {
                "batch": number,
                "at": at,
                "now_ms": batch.now_ms,
                "kind": kind,
                "record": fields,
            }


def _narrow(fields: dict[str, Any], job_id: str) -> bool:
    """Take parts about other jobs out of lists; return whether anything is about this one."""
    is_about = fields.get(_JOB) == job_id
    for name, value in fields.items():
        if isinstance(value, dict):
            is_about |= _narrow(value, job_id)
        elif isinstance(value, list) and any(
            isinstance(one, dict) and _JOB in one for one in value
        ):
            fields[name] = [one for one in value if one.get(_JOB) == job_id]
            is_about |= bool(fields[name])
    return is_about


def _hide_sessions(fields: dict[str, Any]) -> None:
    """Replace the ids of sessions by what readers of the API and of logs see of them."""
    for name, value in fields.items():
        if name == _SESSION and isinstance(value, str):
            fields[name] = hashlib.blake2s(value.encode(), digest_size=_SESSION_BYTES).hexdigest()
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, dict):
                _hide_sessions(one)
