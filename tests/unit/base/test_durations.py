"""Durations read the same in logs, verdicts and tables."""

from __future__ import annotations

import pytest

from rallypoint.base.values import describe_in_sentence, describe_ms


@pytest.mark.parametrize(
    ("ms", "digits", "text"),
    [
        (0, 1, "0.0 s"),
        (12_345, 0, "12 s"),
        (12_345, 1, "12.3 s"),
        (59_400, 0, "59 s"),
        (60_000, 1, "1m"),
        (599_900, 1, "9m59s"),
        (36_012_300, 1, "10h"),
    ],
)
def test_a_sentence_has_seconds_below_a_minute(ms: int, digits: int, text: str) -> None:
    """Then it has what tables have."""
    assert describe_in_sentence(ms, digits) == text
    if ms >= 60_000:
        assert describe_ms(ms) == text
