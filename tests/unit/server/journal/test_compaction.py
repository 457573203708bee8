"""A journal is compacted when a start would read too much, and not again at once."""

from __future__ import annotations

import pytest

from rallypoint.server.journal.compaction import (
    COMPACT_ABOVE,
    COMPACT_AFTER,
    SETTLED_AFTER,
    SHARED_COMPACT_AFTER,
    SHORT_BYTES,
    Compaction,
)

SMALL = 10_000
"""Bytes of a snapshot."""


@pytest.mark.parametrize(
    ("is_shared", "after"), [(False, COMPACT_AFTER), (True, SHARED_COMPACT_AFTER)]
)
def test_number_of_records_is_limited(is_shared: bool, after: int) -> None:
    """From the first life on, and after each snapshot. That of a shard is lower."""
    compaction = Compaction(0, 0, is_shared=is_shared)
    for length in (0, 40, after // 2):
        assert not compaction.is_due(after, COMPACT_ABOVE)
        assert compaction.is_due(after + 1, 2 * SMALL + 1)
        compaction.note(length, SMALL)


@pytest.mark.parametrize("is_shared", [False, True])
def test_snapshot_waits_for_as_much_as_it_holds(is_shared: bool) -> None:
    """In records and in bytes, once it is large. Of a shard it is not most of what is written."""
    compaction = Compaction(0, 0, is_shared=is_shared)
    compaction.note(100, SMALL)

    assert not compaction.is_due(COMPACT_AFTER, 2 * SMALL)
    compaction.note(COMPACT_AFTER, COMPACT_ABOVE)
    assert not compaction.is_due(2 * COMPACT_AFTER, 2 * COMPACT_ABOVE)
    assert compaction.is_due(2 * COMPACT_AFTER, 2 * COMPACT_ABOVE + 1)
    assert compaction.is_due(2 * COMPACT_AFTER + 1, 1)


def test_snapshot_may_be_stored_later() -> None:
    """Until then the journal is as long as before; then the snapshot counts, whatever it was."""
    compaction = Compaction(0, 0, is_shared=False)
    assert compaction.is_due(COMPACT_AFTER + 1, 2 * COMPACT_ABOVE)
    compaction.note(COMPACT_AFTER + 1, 2 * COMPACT_ABOVE)
    assert not compaction.is_due(COMPACT_AFTER + 2, 2 * COMPACT_ABOVE)

    assert not compaction.is_due(100, SMALL)
    assert compaction.is_due(COMPACT_AFTER + 1, SMALL)


@pytest.mark.parametrize("begun", [SHARED_COMPACT_AFTER - 1, SHARED_COMPACT_AFTER, 3_000])
def test_new_owner_lets_agents_return_first(begun: int) -> None:
    """A snapshot while everything waits would make it wait longer; but owners may change often."""
    compaction = Compaction(begun, SHORT_BYTES, is_shared=True)

    assert not compaction.is_due(begun + SETTLED_AFTER, SHORT_BYTES)
    assert compaction.is_due(begun + SETTLED_AFTER + 1, SHORT_BYTES)


def test_new_owner_of_a_large_journal_makes_no_early_snapshot() -> None:
    """It may be one large snapshot already, and each owner would write it again."""
    compaction = Compaction(10, SHORT_BYTES + 1, is_shared=True)

    assert not compaction.is_due(COMPACT_AFTER, COMPACT_ABOVE)
    assert compaction.is_due(COMPACT_AFTER + 1, COMPACT_ABOVE)
