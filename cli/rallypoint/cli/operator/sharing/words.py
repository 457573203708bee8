"""Barriers and keys in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rallypoint.base.printable import to_printable_line, to_printable_lines
from rallypoint.base.ranges import join_ranges, to_ranges
from rallypoint.cli.operator.views.words import describe_duration
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import scope_pb2

VALUE_CHARS_MAX = 200
"""Of a value in a table; `kv get JOB KEY` has the whole of it."""
NAME_WIDTH = 12
"""Columns for a name in front of a value."""


def describe_barrier(one: barrier_pb2.Barrier) -> Sequence[object]:
    """Return the row of a barrier: see `COLUMNS` of the command."""
    return (
        one.name,
        describe_scope(one.scope, one.round),
        one.generation,
        f"{one.arrived_count}/{one.expected_count}",
        describe_duration(one.age),
        describe_duration(one.time_left),
        describe_participants(one.missing) or _count_missing(one),
    )


def describe_barrier_whole(one: barrier_pb2.Barrier) -> Iterator[str]:
    """Yield the lines about one barrier."""
    facts = (
        ("barrier", one.name),
        ("scope", describe_scope(one.scope, one.round)),
        ("generation", str(one.generation)),
        ("arrived", f"{one.arrived_count} of {one.expected_count}"),
        ("", describe_participants(one.arrived)),
        ("missing", describe_participants(one.missing) or _count_missing(one)),
        ("waiting", f"{describe_duration(one.age)} since the first arrival"),
        ("", f"{describe_duration(one.since_last_arrival)} since the latest arrival"),
        ("fails", f"in {describe_duration(one.time_left)}, unless all have arrived by then"),
    )
    for name, text in facts:
        if text:
            yield f"{name:{NAME_WIDTH}}{to_printable_line(text)}"


def describe_participants(found: barrier_pb2.Participants) -> str:
    """Return participants in words: "ranks 0-3,7; node a"; empty: none is known."""
    parts = []
    if found.ranks:
        word = "rank" if len(found.ranks) == 1 else "ranks"
        parts.append(f"{word} {join_ranges(to_ranges(found.ranks))}")
    if found.nodes:
        word = "node" if len(found.nodes) == 1 else "nodes"
        parts.append(f"{word} {', '.join(found.nodes)}")
    if found.names:
        parts.append(", ".join(found.names))
    return "; ".join(parts)


def _count_missing(one: barrier_pb2.Barrier) -> str:
    left = one.expected_count - one.arrived_count
    return f"{left} more, no matter which" if left > 0 else ""


def describe_scope(scope: scope_pb2.Scope.ValueType, round: int) -> str:
    """Return what a barrier belongs to."""
    return "run" if scope == scope_pb2.SCOPE_RUN else f"round {round}"


def describe_key(one: keys_pb2.KeyValue) -> Sequence[object]:
    """Return the row of a key."""
    return one.key, one.mod_revision, one.version, describe_value(one.value)


def describe_value(value: bytes) -> str:
    """Return a value as text that a terminal shows on one line, or how long it is."""
    try:
        text = to_printable_line(value.decode())
    except UnicodeDecodeError:
        return f"({len(value)} bytes that are not text)"
    if len(text) <= VALUE_CHARS_MAX:
        return text
    return f"{text[:VALUE_CHARS_MAX]}… ({len(value)} bytes)"


def describe_value_whole(value: bytes) -> str:
    """Return a value as lines of text for a terminal, or how long it is."""
    try:
        return to_printable_lines(value.decode())
    except UnicodeDecodeError:
        return f"({len(value)} bytes that are not text; a pipe gets them)"


def describe_event(event: keys_pb2.KeyEvent) -> str:
    """Return a line about a change of a key."""
    revision = event.kv.mod_revision
    if event.was_deleted:
        return f"{revision}  deleted  {event.kv.key}"
    return f"{revision}  set      {event.kv.key}  {describe_value(event.kv.value)}"
