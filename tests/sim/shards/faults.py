"""What goes wrong where several coordinators share a store, and how often: its own swarm.

Everything here is drawn from a separate generator, so that the rest of a seed is what the seed
draws without shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

SHARDS = (1, 2, 3, 5)
MEMBERS = (1, 2, 2, 3, 3)
TTL_S = 4
EVERY_MS = (1_500, 4_000, 9_000)


class OwnerFault(Enum):
    """What can be done to the coordinators and to etcd."""

    KILL = "kill owner"  # SIGKILL: its streams are reset
    BLACKOUT = "owner's host dies"  # no stream is reset
    FREEZE = "freeze owner"  # SIGSTOP for a while, which may be longer than its lease
    TERMINATE = "terminate owner"  # SIGTERM: it hands its shards over
    JOIN = "one more coordinator"  # it takes its share
    CUT = "owner loses etcd"  # nothing passes between one coordinator and etcd
    DOWN = "etcd is down"  # no member of a majority answers anyone
    ELECT = "etcd elects"  # leases are counted afresh
    STALE = "old leader renews"  # a leader that is one no more confirms renewals
    COMPACT = "etcd compacts"  # watches begin again
    LAG = "watches lag"  # what etcd shows arrives late


class AppendFault(Enum):
    """What the next append of any shard meets."""

    CRASH_BEFORE = "owner crashes before an append"
    CRASH_AFTER = "owner crashes after an append"
    FREEZE = "owner freezes before an append"  # etcd gets it when the process continues
    LOSE_ANSWERS = "answers to an append get lost"  # it is sent again, or given up
    LATE = "append takes its way"  # other things happen before it arrives
    SLOW = "append is answered late"
    COMPACT = "shard is compacted"


LONG = frozenset(
    {
        AppendFault.CRASH_BEFORE,
        AppendFault.FREEZE,
        AppendFault.LOSE_ANSWERS,
        AppendFault.LATE,
    }
)
"""These decide whether the append happens at all."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The options of one seed."""

    shards: int
    members: int
    kinds: tuple[OwnerFault, ...]
    every_ms: int
    appends: tuple[AppendFault, ...]
    appends_every_ms: int
    ttl_ms: int
    """By the clock of etcd, which may be faster than those of the coordinators."""
    late_ms_max: int
    """How late a lease ends, at most."""
    lost_percent: int
    """Of the answers of etcd."""
    slow_percent: int
    """Of the appends that go their whole way."""
    skew_ms: int
    """How far two wall clocks are apart, at most."""
    latency_ms_max: int
    watch_ms_max: int


def draw_rates(rng: Random) -> Rates:
    """Return the options of one seed."""
    is_quiet = rng.random() < 0.1
    kinds = tuple(kind for kind in OwnerFault if rng.random() < 0.5)
    appends = tuple(kind for kind in AppendFault if rng.random() < 0.5)
    return Rates(
        shards=rng.choice(SHARDS),
        members=rng.choice(MEMBERS),
        kinds=() if is_quiet else kinds,
        every_ms=rng.choice(EVERY_MS),
        appends=() if is_quiet else appends,
        appends_every_ms=rng.choice((1_000, 3_000, 9_000)),
        ttl_ms=rng.choice((TTL_S * 1000, TTL_S * 950, TTL_S * 900)),
        late_ms_max=rng.choice((0, 500, 3_000)),
        lost_percent=rng.choice((0, 0, 2)),
        slow_percent=rng.choice((0, 2, 10)),
        skew_ms=rng.choice((0, 0, 200, 3_000)),
        latency_ms_max=rng.choice((1, 5, 40)),
        watch_ms_max=rng.choice((1, 20, 300)),
    )
