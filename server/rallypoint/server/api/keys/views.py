"""What callers of KeyValueService see."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from google.rpc.status_pb2 import Status

from rallypoint.server.contract.pages import Room
from rallypoint.server.contract.refusals import NAMES_BYTES_MAX, status_of
from rallypoint.server.contract.source import Source
from rallypoint.server.core.keyspace.values import Answer, Change, Entry, Written
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2


def kv_message(key: str, entry: Entry, *, with_value: bool = True) -> keys_pb2.KeyValue:
    """Return a key and its value."""
    return keys_pb2.KeyValue(
        key=key,
        value=entry.value if with_value else b"",
        create_revision=entry.created,
        mod_revision=entry.modified,
        version=entry.version,
    )


def event_message(change: Change) -> keys_pb2.KeyEvent:
    """Return a change."""
    key = change.place.key
    if change.entry is None:
        gone = keys_pb2.KeyValue(key=key, mod_revision=change.revision)
        return keys_pb2.KeyEvent(kv=gone, was_deleted=True)
    return keys_pb2.KeyEvent(kv=kv_message(key, change.entry))


def header_message(source: Source, revision: int) -> keys_pb2.KeyValueHeader:
    """Return a header."""
    return keys_pb2.KeyValueHeader(epoch=source.epoch, revision=revision, durable=source.durable)


def written_message(
    answer: Answer, source: Source, keys: Sequence[str]
) -> keys_pb2.WriteKeysResponse:
    """Return the answer to WriteKeys; `keys` are those of the writes."""
    results = [_result(one, key) for one, key in zip(answer.results, keys, strict=True)]
    header = header_message(source, answer.revision)
    return keys_pb2.WriteKeysResponse(header=header, results=results)


def _result(written: Written, key: str) -> keys_pb2.KeyWritten:
    return keys_pb2.KeyWritten(
        was_changed=written.revision > 0,
        revision=written.revision,
        sum=written.sum,
        kv=None if written.entry is None else kv_message(key, written.entry),
    )


def missing_status(keys: Sequence[str], waited_s: float) -> Status:
    """Return the status for keys that were waited for and do not exist."""
    room = Room(bytes_max=NAMES_BYTES_MAX)
    named = takewhile(lambda key: room.take(len(key.encode())), keys)
    more = len(keys) - len(keys[:_SHOWN_MAX])
    shown = ", ".join(keys[:_SHOWN_MAX]) + (f" and {more} more" if more else "")
    reason, count = details_pb2.REFUSAL_REASON_KEYS_MISSING, len(keys)
    return status_of(reason, missing_count=count, keys=named, waited_s=waited_s, shown=shown)


_SHOWN_MAX = 3
