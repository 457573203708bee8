"""What a simulated worker asks of the key-value store: its requests, and how they are named."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any

from google.protobuf.duration_pb2 import Duration

from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import scope_pb2

NUMBERS = ("n1", "n2")
"""Keys that hold numbers, most of the time."""
TEXTS = ("a", "a/b", "b")
VALUES = (b"x", b"yy", b"", b"5", b"-3", b"9223372036854775800")
APPENDED = (b"z", b"", b"1", b"w" * 30_000)
AMOUNTS = (1, 1, 1, 2, -1, 9_007_199_254_740_991)
PREFIXES = ("", "a", "n", "n1")
RUN_SHARE = 0.5
"""Of the requests: those about keys of the run."""


class Method(Enum):
    """A method of KeyValueService."""

    WRITE = "WriteKeys"
    GET = "GetKeys"
    LIST = "ListKeys"
    WATCH = "WatchKeys"


REQUESTS: dict[Method, Any] = {
    method: getattr(keys_pb2, f"{method.value}Request") for method in Method
}
RESPONSES: dict[Method, Any] = {
    method: getattr(keys_pb2, f"{method.value}Response") for method in Method
}
KINDS = ("put", "add", "compare_and_set", "delete", "append")
_OFTEN = ("add", "add", "add", "put", "compare_and_set", Method.GET, Method.GET)
CALLS = (*_OFTEN, "delete", Method.WRITE, Method.LIST)
"""What workers call, as often as it is here. A kind is a WriteKeys with one change of it."""
WAIT_MS = (200, 2_000, 20_000)
"""How long a read waits for keys."""


@dataclass(frozen=True, slots=True)
class Op:
    """One call that a worker wants to make."""

    method: Method
    request: Any
    """Complete but for its id, and what was known before."""


def draw_op(rng: Random, job_id: str, seen: dict[str, keys_pb2.KeyValue]) -> Op:
    """Return what a worker does next; `seen` are the keys as it has seen them last."""
    chosen = rng.choice(CALLS)
    method = chosen if isinstance(chosen, Method) else Method.WRITE
    scope = scope_pb2.SCOPE_RUN if rng.random() < RUN_SHARE else scope_pb2.SCOPE_ROUND
    request = REQUESTS[method](job_id=job_id, scope=scope)
    match method:
        case Method.GET:
            request.keys.extend(rng.sample(NUMBERS + TEXTS, rng.randint(1, 2)))
            if rng.random() < 0.4:
                request.timeout.CopyFrom(Duration(nanos=0))
                request.timeout.FromMilliseconds(rng.choice(WAIT_MS))
        case Method.LIST:
            request.prefix, request.page_size = rng.choice(PREFIXES), rng.choice((0, 1, 2))
            request.keys_only = rng.random() < 0.3
        case _ if isinstance(chosen, str):
            request.writes.append(_draw_write(rng, seen, chosen))
        case _:
            for _ in range(rng.randint(1, 3)):
                request.writes.append(_draw_write(rng, seen, rng.choice(KINDS)))
    return Op(method, request)


def _draw_write(rng: Random, seen: dict[str, keys_pb2.KeyValue], kind: str) -> keys_pb2.KeyWrite:
    key = rng.choice(NUMBERS if kind == "add" and rng.random() < 0.9 else NUMBERS + TEXTS)
    one = keys_pb2.KeyWrite(key=key)
    match kind:
        case "put":
            one.put.value = b"%d" % rng.randint(0, 9) if key in NUMBERS else rng.choice(VALUES)
        case "append":
            one.append.value = rng.choice(APPENDED)
        case "add":
            one.add.amount = rng.choice(AMOUNTS)
        case "compare_and_set":
            one.compare_and_set.value = b"%d" % rng.randint(0, 9)
            one.compare_and_set.expected.CopyFrom(_draw_condition(rng, seen.get(key)))
        case _:
            one.delete.SetInParent()
            if rng.random() < 0.5:
                one.delete.expected.CopyFrom(_draw_condition(rng, seen.get(key)))
    return one


def _draw_condition(rng: Random, seen: keys_pb2.KeyValue | None) -> keys_pb2.KeyCondition:
    if seen is None or rng.random() < 0.2:
        return keys_pb2.KeyCondition(mod_revision=0)
    if rng.random() < 0.5:
        return keys_pb2.KeyCondition(value=seen.value)
    return keys_pb2.KeyCondition(mod_revision=seen.mod_revision)
