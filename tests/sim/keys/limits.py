"""The limits of the key-value store in a seed: the product's, or so low that it reaches them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from random import Random

from rallypoint.server.api.keys import reading
from rallypoint.server.core import keys as writes
from rallypoint.server.core.model import keyspace
from sim.keys.model import Limits
from sim.seeds.planting import patched

USUAL = Limits(
    keyspace.KEYS_MAX,
    keyspace.BYTES_MAX,
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


def limited(limits: Limits) -> AbstractContextManager[None]:
    """Apply these limits while the context is open."""
    return patched(
        (writes, "KEYS_MAX", limits.keys),
        (writes, "BYTES_MAX", limits.bytes),
        (keyspace, "CHANGES_MAX", limits.changes),
        (keyspace, "REQUESTS_BYTES_MAX", limits.requests_bytes),
        (reading, "EVENTS_MAX", limits.events),
    )
