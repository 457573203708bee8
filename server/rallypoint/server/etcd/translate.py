"""Translates between our values and the messages of etcd's API, which `aetcd` brings generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from aetcd import rpc

from rallypoint.server.etcd.values import (
    Change,
    Condition,
    Delete,
    Get,
    KeyValue,
    Operation,
    Outcome,
    Put,
    Ranged,
    Target,
)


def to_range(get: Get, *, revision: int = 0, limit: int = 0, keys_only: bool = False) -> Any:
    """Return the request that reads keys, sorted as etcd keeps them.

    Args:
        get: which keys.
        revision: of the store; 0: the newest one.
        limit: number of keys; 0: all.
        keys_only: leaves the values out.
    """
    return rpc.RangeRequest(
        key=get.key, range_end=get.end, revision=revision, limit=limit, keys_only=keys_only
    )


def to_transaction(
    conditions: Iterable[Condition], then: Iterable[Operation], otherwise: Iterable[Operation]
) -> Any:
    """Return the request for a transaction."""
    return rpc.TxnRequest(
        compare=[_to_compare(condition) for condition in conditions],
        success=[_to_operation(operation) for operation in then],
        failure=[_to_operation(operation) for operation in otherwise],
    )


def _to_compare(condition: Condition) -> Any:
    kinds = {
        Target.CREATED: rpc.Compare.CREATE,
        Target.MODIFIED: rpc.Compare.MOD,
        Target.LEASE: rpc.Compare.LEASE,
        Target.VALUE: rpc.Compare.VALUE,
    }
    target, name = condition.target, condition.target.value
    wanted = {name: condition.value if target is Target.VALUE else condition.number}
    return rpc.Compare(key=condition.key, result=rpc.Compare.EQUAL, target=kinds[target], **wanted)


def _to_operation(operation: Operation) -> Any:
    match operation:
        case Put(key, value, lease):
            put = rpc.PutRequest(key=key, value=value, lease=lease)
            return rpc.RequestOp(request_put=put)
        case Delete(key, end):
            delete = rpc.DeleteRangeRequest(key=key, range_end=end)
            return rpc.RequestOp(request_delete_range=delete)
        case Get():
            return rpc.RequestOp(request_range=to_range(operation))
        case _:
            assert_never(operation)


def from_pair(pair: Any) -> KeyValue:
    """Return a key of etcd's as a value."""
    return KeyValue(pair.key, pair.value, pair.create_revision, pair.mod_revision, pair.lease)


def from_range(answer: Any) -> Ranged:
    """Return the answer to a read."""
    found = tuple(from_pair(pair) for pair in answer.kvs)
    return Ranged(found, answer.more, answer.header.revision, answer.header.raft_term)


def from_transaction(answer: Any) -> Outcome:
    """Return the answer to a transaction."""
    found = tuple(
        tuple(from_pair(pair) for pair in one.response_range.kvs)
        for one in answer.responses
        if one.WhichOneof("response") == "response_range"
    )
    return Outcome(answer.succeeded, answer.header.revision, found)


def from_events(events: Sequence[Any]) -> tuple[Change, ...]:
    """Return the changes that a watch has seen, in order."""
    return tuple(Change(from_pair(one.kv), one.type == rpc.Event.DELETE) for one in events)
