"""KeyValueService."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any

from rallypoint.client.attempts import READ_S_MAX, Call, Method
from rallypoint.client.calls.lists import Following, Listing
from rallypoint.client.known import Known
from rallypoint.client.values import Scope
from rallypoint.v1 import key_value_service_pb2 as keys_pb2

_SERVICE = "/rallypoint.v1.KeyValueService/"
GET_KEYS = Method(f"{_SERVICE}GetKeys", keys_pb2.GetKeysRequest, keys_pb2.GetKeysResponse)
WRITE_KEYS = Method(f"{_SERVICE}WriteKeys", keys_pb2.WriteKeysRequest, keys_pb2.WriteKeysResponse)
LIST_KEYS = Method(f"{_SERVICE}ListKeys", keys_pb2.ListKeysRequest, keys_pb2.ListKeysResponse)
WATCH_KEYS = Method(f"{_SERVICE}WatchKeys", keys_pb2.WatchKeysRequest, keys_pb2.WatchKeysResponse)
Writing = Call[keys_pb2.WriteKeysRequest, keys_pb2.WriteKeysResponse]


def get_keys(
    known: Known, job_id: str, keys: Iterable[str], scope: Scope, *, waits: bool
) -> Call[keys_pb2.GetKeysRequest, keys_pb2.GetKeysResponse]:
    """Read keys; wait until all of them exist, or read what there is."""
    request = keys_pb2.GetKeysRequest(job_id=job_id, scope=_number(scope), keys=keys)
    learn = _learner(known, job_id)
    if waits:
        return Call(GET_KEYS, request, waits=True, learn=learn)
    return Call(GET_KEYS, request, attempt_s=READ_S_MAX, learn=learn)


def put_key(known: Known, job_id: str, key: str, value: bytes, scope: Scope) -> Writing:
    """Set a key."""
    write = keys_pb2.KeyWrite(key=key, put=keys_pb2.KeyWrite.Put(value=value))
    return write_keys(known, job_id, [write], scope)


def add_to_key(known: Known, job_id: str, key: str, amount: int, scope: Scope) -> Writing:
    """Add to the number that a key holds."""
    write = keys_pb2.KeyWrite(key=key, add=keys_pb2.KeyWrite.Add(amount=amount))
    return write_keys(known, job_id, [write], scope)


def compare_and_set_key(
    known: Known,
    job_id: str,
    key: str,
    value: bytes,
    expected: keys_pb2.KeyCondition,
    scope: Scope,
) -> Writing:
    """Set a key if it is as expected."""
    change = keys_pb2.KeyWrite.CompareAndSet(expected=expected, value=value)
    write = keys_pb2.KeyWrite(key=key, compare_and_set=change)
    return write_keys(known, job_id, [write], scope)


def delete_key(
    known: Known,
    job_id: str,
    key: str,
    expected: keys_pb2.KeyCondition | None,
    scope: Scope,
) -> Writing:
    """Delete a key, if it is as expected."""
    write = keys_pb2.KeyWrite(key=key, delete=keys_pb2.KeyWrite.Delete(expected=expected))
    return write_keys(known, job_id, [write], scope)


def write_keys(
    known: Known, job_id: str, writes: Iterable[keys_pb2.KeyWrite], scope: Scope
) -> Writing:
    """Make changes, all or none. They count once, however often the request is sent."""
    request = keys_pb2.WriteKeysRequest(
        job_id=job_id, scope=_number(scope), writes=writes, request_id=secrets.token_hex(16)
    )
    before = known.header(job_id)

    def mark() -> None:
        request.known.CopyFrom(before)

    is_exact = known.is_durable and known.is_recent(job_id)
    learn = _learner(known, job_id)
    return Call(WRITE_KEYS, request, mark=mark, is_exact=is_exact, learn=learn)


def list_keys(
    known: Known, job_id: str, prefix: str, scope: Scope, *, keys_only: bool, page_size: int
) -> Listing[keys_pb2.ListKeysRequest, keys_pb2.ListKeysResponse, keys_pb2.KeyValue]:
    """List the keys with a prefix."""
    request = keys_pb2.ListKeysRequest(
        job_id=job_id,
        scope=_number(scope),
        prefix=prefix,
        page_size=page_size,
        keys_only=keys_only,
    )
    return Listing(LIST_KEYS, request, lambda page: page.kvs, learn=_learner(known, job_id))


def watch_keys(
    known: Known,
    job_id: str,
    prefix: str,
    scope: Scope,
    after: keys_pb2.KeyValueHeader | None,
) -> Following[keys_pb2.WatchKeysRequest, keys_pb2.WatchKeysResponse, keys_pb2.KeyEvent]:
    """Follow the changes of the keys with a prefix.

    Every answer says up to which revision all changes were sent. The next connection begins with
    the revision after it.
    """
    request = keys_pb2.WatchKeysRequest(job_id=job_id, scope=_number(scope), prefix=prefix)

    def continue_after(header: keys_pb2.KeyValueHeader) -> None:
        request.start_revision, request.epoch = header.revision + 1, header.epoch

    def take(answer: keys_pb2.WatchKeysResponse) -> Iterable[keys_pb2.KeyEvent]:
        continue_after(answer.header)
        known.learn_header(job_id, answer.header)
        return answer.events

    if after is not None:
        continue_after(after)
    return Following(WATCH_KEYS, request, take)


def _learner(known: Known, job_id: str) -> Callable[[Any], None]:
    return lambda answer: known.learn_header(job_id, answer.header)


def _number(scope: Scope) -> Any:
    """Return the number of a scope in the contract, which is the same."""
    return scope.value
