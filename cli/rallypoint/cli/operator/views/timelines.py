"""How a round came into being: from the failure that made it necessary to its first step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rallypoint.base.values import describe_ms
from rallypoint.v1 import round_pb2
from rallypoint.wire.durations import to_ms

COLUMNS = ("MARK", "AFTER", "TOOK", "WHAT HAD HAPPENED")
FIRST = "the run was opened"
MEANINGS = {
    "detected": "the coordinator learnt of the failure",
    "told": "it ordered the workers of the round before to stop",
    "stopped": "the last of them ended",
    "swept": "no process of theirs was left",
    "sealed": "nodes and ranks were fixed",
    "started": "every node had started its workers",
    "imported": "the last worker had finished its imports",
    "process_group": "the last worker had joined its process group",
    "first_step": "a worker reported its first step",
}
"""The marks, in the order in which they usually come."""


def find_marks(timeline: round_pb2.RoundTimeline) -> list[tuple[str, int]]:
    """Return the marks that are known with their times in ms, in the order of their times."""
    found = {field.name: to_ms(value) for field, value in timeline.ListFields()}
    known = [(name, found[name]) for name in MEANINGS if name in found]
    return sorted(known, key=lambda one: one[1])


def describe_origin(timeline: round_pb2.RoundTimeline) -> str:
    """Return what the times of a timeline count from."""
    if timeline.HasField("detected"):
        return "the failure"
    return "the decision to stop" if timeline.HasField("told") else FIRST


def describe_timeline(timeline: round_pb2.RoundTimeline) -> str:
    """Return a timeline as one line: `after the failure: detected 20ms, told 20ms`."""
    marks = ", ".join(f"{_name(name)} {describe_ms(ms)}" for name, ms in find_marks(timeline))
    return f"after {describe_origin(timeline)}: {marks}"


def make_rows(timeline: round_pb2.RoundTimeline) -> list[Sequence[object]]:
    """Return a row for each mark: see `COLUMNS`."""
    marks = find_marks(timeline)
    return [
        (_name(name), describe_ms(ms), describe_ms(ms - before_ms), MEANINGS[name])
        for (_, before_ms), (name, ms) in pairwise([("", 0), *marks])
    ]


def _name(mark: str) -> str:
    return mark.replace("_", " ")
