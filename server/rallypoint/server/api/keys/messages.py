"""The messages of KeyValueService: requests as inputs and reads, and what callers see."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import blake2b
from itertools import takewhile

from google.rpc.status_pb2 import Status
from msgspec import Struct

from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import Source, limit_wait_ms, require
from rallypoint.server.contract.pages import PAGE_MAX, Room
from rallypoint.server.contract.refusals import NAMES_BYTES_MAX, status_of
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.keyspace import (
    WRITE_BYTES_MAX,
    WRITES_MAX,
    Answer,
    Change,
    Condition,
    Entry,
    Place,
    Write,
    Written,
)
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import scope_pb2
from rallypoint.wire.durations import to_ms

KEYS_MAX = 1_024
"""Keys of one read."""


class Get(Struct, frozen=True):
    """A read of keys."""

    claim: inputs.Claim
    places: tuple[Place, ...]
    timeout_ms: int
    """How long to wait for keys that do not exist; 0: not at all."""


class Page(Struct, frozen=True):
    """A read of a page of keys."""

    claim: inputs.Claim
    prefix: Place
    size: int
    after: str
    """The last key of the page before; empty for the first page."""
    keys_only: bool


class Watch(Struct, frozen=True):
    """A wish for changes of keys."""

    claim: inputs.Claim
    prefix: Place
    start: int
    """The first revision; 0: the next one."""
    epoch: int
    """Of the header that it follows; 0: not set."""


def to_writes(
    request: keys_pb2.WriteKeysRequest, claim: inputs.Claim, clock_ms: int
) -> inputs.WriteKeys:
    """Return what a worker wants to change.

    Args:
        request: from a worker.
        claim: what its token says.
        clock_ms: the coordinator's clock, as Unix time.
    """
    check(request, clock_ms)
    is_repeated = request.HasField("known")
    require(bool(request.request_id) or not is_repeated, "request_id", "must be set with known")
    writes = _to_writes(request.writes)
    return inputs.WriteKeys(
        claim=claim,
        round=_round(request.scope, claim),
        writes=writes,
        request_id=request.request_id,
        answer_id=secrets.token_hex(8),
        digest=_digest(request.scope, writes),
        is_repeated=is_repeated,
        known_epoch=request.known.epoch,
        known_revision=request.known.revision,
    )


def _digest(scope: scope_pb2.Scope.ValueType, writes: tuple[Write, ...]) -> bytes:
    """Return what tells another request from another attempt of the same one."""
    digest = blake2b(str(scope).encode(), digest_size=16)
    for one in writes:
        held = one.expected or Condition()
        facts = (one.key, one.amount, held.modified, _length(one.value), _length(held.value))
        digest.update(repr(facts).encode())
        digest.update(one.value or b"")
        digest.update(held.value or b"")
        if one.suffix is not None:  # the others keep the digests that journals hold
            digest.update(b"append %d " % len(one.suffix) + one.suffix)
    return digest.digest()


def _length(value: bytes | None) -> int | None:
    return None if value is None else len(value)


def _bytes_of_values(write: Write) -> int:
    held = write.expected or Condition()
    return len(write.value or write.suffix or b"") + len(held.value or b"")


def _to_writes(messages: Sequence[keys_pb2.KeyWrite]) -> tuple[Write, ...]:
    require(0 < len(messages) <= WRITES_MAX, "writes", f"must be 1 to {WRITES_MAX}")
    writes = tuple(_to_write(one, number) for number, one in enumerate(messages))
    bytes = sum(map(_bytes_of_values, writes))
    problem = f"have more than {WRITE_BYTES_MAX} bytes of values together"
    require(bytes <= WRITE_BYTES_MAX, "writes", problem)
    return writes


def _to_write(message: keys_pb2.KeyWrite, number: int) -> Write:
    path = f"writes[{number}]"
    match message.WhichOneof("write"):
        case "put":
            return Write(message.key, value=message.put.value)
        case "add":
            return Write(message.key, amount=message.add.amount)
        case "append":
            return Write(message.key, suffix=message.append.value)
        case "compare_and_set":
            wanted = message.compare_and_set
            expected = _to_condition(wanted.expected, f"{path}.compare_and_set.expected")
            return Write(message.key, value=wanted.value, expected=expected)
        case "delete":
            if not message.delete.HasField("expected"):
                return Write(message.key)
            path += ".delete.expected"
            return Write(message.key, expected=_to_condition(message.delete.expected, path))
        case _:
            require(False, path, "must put, add, append, compare_and_set or delete")
            raise AssertionError


def _to_condition(message: keys_pb2.KeyCondition, path: str) -> Condition:
    match message.WhichOneof("condition"):
        case "value":
            return Condition(value=message.value)
        case "mod_revision":
            return Condition(modified=message.mod_revision)
        case _:
            require(False, path, "must have a value or a mod_revision")
            raise AssertionError


def to_get(request: keys_pb2.GetKeysRequest, claim: inputs.Claim, left_s: float | None) -> Get:
    """Return a read of keys; `left_s` are the seconds until the deadline of the call, if any."""
    check(request)
    require(0 < len(request.keys) <= KEYS_MAX, "keys", f"must be 1 to {KEYS_MAX}")
    round, wanted_ms = _round(request.scope, claim), to_ms(request.timeout)
    is_waiting = bool(request.timeout.seconds or request.timeout.nanos)
    timeout_ms = limit_wait_ms(max(1, wanted_ms), left_s) if is_waiting else 0
    return Get(claim, tuple(Place(round, key) for key in request.keys), timeout_ms)


def to_page(request: keys_pb2.ListKeysRequest, claim: inputs.Claim) -> Page:
    """Return a read of a page of keys."""
    check(request)
    is_token = request.page_token.startswith(request.prefix) or not request.page_token
    require(is_token, "page_token", "is not the token of a page of this prefix")
    prefix = Place(_round(request.scope, claim), request.prefix)
    size = request.page_size or PAGE_MAX
    return Page(claim, prefix, size, request.page_token, request.keys_only)


def to_watch(request: keys_pb2.WatchKeysRequest, claim: inputs.Claim, clock_ms: int) -> Watch:
    """Return a wish for changes of keys; `clock_ms` is the coordinator's clock, as Unix time."""
    check(request, clock_ms)
    has_both = not request.start_revision or request.epoch > 0
    require(has_both, "epoch", "must be that of the header that start_revision follows")
    prefix = Place(_round(request.scope, claim), request.prefix)
    return Watch(claim, prefix, request.start_revision, request.epoch)


def _round(scope: scope_pb2.Scope.ValueType, claim: inputs.Claim) -> int:
    return 0 if scope == scope_pb2.SCOPE_RUN else claim.round


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
