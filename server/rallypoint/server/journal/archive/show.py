"""Records for a reader: only those about a job, and without what is secret.

A token lets its holder act as a worker, and the id of a session as its agent. Values of keys and
payloads of barriers are the user's own; a bug report does not need them.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from rallypoint.server.core.model.shards import shard_of
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.codec.batches import Batch, decode_batch
from rallypoint.server.journal.codec.json_form import to_json

_JOB = "job_id"
_SESSION = "session"
_SESSION_BYTES = 16


def describe_records(contents: Contents, job_id: str = "") -> Iterator[dict[str, Any]]:
    """Yield each record as a value of JSON, oldest first.

    Records of several shards come in the order of their times, as far as the clocks of their
    coordinators agree, and those of one shard always in their own order.

    Args:
        contents: the store.
        job_id: only records about this job; empty: all.

    Raises:
        JournalUnreadable: when a batch is damaged, or a newer version has written it.
    """
    wanted = range(len(contents.journals))
    if contents.is_sharded and job_id:
        shard = shard_of(job_id, contents.shard_count)
        wanted = range(shard, shard + 1)
    numbered = [_decode_all(contents.journals[shard], shard) for shard in wanted]
    for at_ms, shard, number, batch in heapq.merge(*numbered, key=itemgetter(0)):
        at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat("T", "milliseconds")
        place = {"shard": shard} if contents.is_sharded else {}
        for record in batch.records:
            [(kind, fields)] = to_json(record, redact=True).items()
            if job_id and not _narrow(fields, job_id):
                continue
            _hide_sessions(fields)
            yield {
                **place,
                "batch": number,
                "at": at,
                "now_ms": batch.now_ms,
                "kind": kind,
                "record": fields,
            }


def _decode_all(payloads: Sequence[bytes], shard: int) -> Iterator[tuple[int, int, int, Batch]]:
    """Yield when each batch was written, its shard, its number, and itself."""
    for number, payload in enumerate(payloads, 1):
        batch = decode_batch(payload)
        yield batch.unix_ms, shard, number, batch


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
