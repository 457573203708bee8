"""Barriers in words."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from rallypoint.cli.operator.reads import barrier as words
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import scope_pb2

BARRIER = barrier_pb2.Barrier(
    scope=scope_pb2.SCOPE_ROUND,
    round=3,
    name="saved",
    generation=2,
    expected_count=4,
    arrived_count=3,
    arrived=barrier_pb2.Participants(ranks=[0, 1, 3]),
    missing=barrier_pb2.Participants(ranks=[2]),
    age=Duration(seconds=90),
    since_last_arrival=Duration(seconds=20),
    time_left=Duration(seconds=510),
)


def test_a_barrier_is_a_row() -> None:
    """Who is missing is named, or counted when it does not matter who comes."""
    counted = barrier_pb2.Barrier(
        scope=scope_pb2.SCOPE_RUN, name="any", generation=1, expected_count=3, arrived_count=1
    )

    assert words.describe_barrier(BARRIER) == (
        *("saved", "round 3", 2, "3/4", "1m30s", "8m30s", "rank 2"),
    )
    assert words.describe_barrier(counted)[-1] == "2 more, no matter which"
    assert words.describe_scope(counted.scope, 0) == "run"


def test_a_barrier_is_shown_whole() -> None:
    """A fact on each line; what is unknown has none."""
    assert list(words.describe_barrier_whole(BARRIER)) == [
        "barrier     saved",
        "scope       round 3",
        "generation  2",
        "arrived     3 of 4",
        "            ranks 0-1,3",
        "missing     rank 2",
        "waiting     1m30s since the first arrival",
        "            20s since the latest arrival",
        "fails       in 8m30s, unless all have arrived by then",
    ]


def test_participants_are_named_by_kind() -> None:
    """Ranks as ranges, then nodes, then names."""
    every = barrier_pb2.Participants(ranks=[0, 1, 2, 5], nodes=["a", "b"], names=["x"])

    assert words.describe_participants(every) == "ranks 0-2,5; nodes a, b; x"
    assert words.describe_participants(barrier_pb2.Participants()) == ""
