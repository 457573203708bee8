"""The limits of the key-value store in a seed: the product's, or so low that it reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from rallypoint.server.core.keys import writes
from rallypoint.server.core.keyspace import keyspace, values
from rallypoint.server.rpc.keys import reading
from sim.keys.model import Limits

USUAL = Limits(
    values.KEYS_MAX,
    values.BYTES_MAX,
    keyspace.CHANGES_MAX,
    keyspace.REQUESTS_BYTES_MAX,
    reading.EVENTS_MAX,
)


def draw_limits(rng: Random) -> Limits:
    """Return the limits of a seed."""
    if rng.random() < 0.5:
        return USUAL
    return Limits(
        keys=rng.choice((3, 6, USUAL.keys)),
        bytes=rng.choice((12, 40, USUAL.bytes)),
        changes=rng.choice((1, 3, 10, USUAL.changes)),
        requests_bytes=rng.choice((70, 300, USUAL.requests_bytes)),
        events=rng.choice((1, 2, USUAL.events)),
    )


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Apply these limits while the context is open."""
    _apply(limits)
    try:
        yield
    finally:
        _apply(USUAL)


def _apply(limits: Limits) -> None:
    for module, name, limit in (
        (writes, "KEYS_MAX", limits.keys),
        (writes, "BYTES_MAX", limits.bytes),
        (keyspace, "CHANGES_MAX", limits.changes),
        (keyspace, "REQUESTS_BYTES_MAX", limits.requests_bytes),
        (reading, "EVENTS_MAX", limits.events),
    ):
        setattr(module, name, limit)
