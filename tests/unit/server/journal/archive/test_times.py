"""Moments of records, moved to another clock."""

from __future__ import annotations

import pytest

from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.job import NodeHealth
from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.server.core.reads.replay import JournalRecord
from rallypoint.server.journal.archive.times import MOMENTS, OTHERS, moved
from support.journal.full import KINDS, full_records, names_of, types_in


def test_every_field_with_a_time_is_known() -> None:
    """Either a moment or not; a new field must be given a place."""
    kinds = {kind for record in KINDS for kind in types_in(record)}
    times = {
        name
        for kind in kinds
        if isinstance(kind, type) and hasattr(kind, "__annotations__")
        for name in (names_of(kind) if hasattr(kind, "__struct_fields__") else ())
        if name.endswith("_ms")
    }

    assert times == MOMENTS | OTHERS
    assert not MOMENTS & OTHERS


@pytest.mark.parametrize("record", full_records(), ids=lambda record: type(record).__name__)
def test_record_moves_there_and_back(record: JournalRecord) -> None:
    """All its moments by the same; everything else stays."""
    later = moved(record, 12_345)

    assert moved(later, -12_345) == record
    has_moment = any(f"{name}=" in repr(record) for name in MOMENTS)
    assert (later != record) == has_moment


def test_what_is_not_set_stays_so() -> None:
    """No quarantine, no end: they must not become moments in the past."""
    health = NodeHealth(NodeName("node"), failures_ms=(5, 7))

    assert moved(health, 10) == NodeHealth(NodeName("node"), failures_ms=(15, 17))


def test_time_of_another_clock_stays() -> None:
    """A worker's own times: its age, and when it failed by its node's clock."""
    ended = WorkerExit(0, 7, 1, None, at_ms=100, ran_ms=50, ago_ms=3, failed_ms=1_700_000_000_000)

    later = moved((ended,), 1_000)[0]
    assert (later.at_ms, later.ran_ms, later.ago_ms) == (1_100, 50, 3)
    assert later.failed_ms == ended.failed_ms
