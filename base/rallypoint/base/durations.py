"""Durations as people read them, in tables and in sentences."""

from __future__ import annotations

UNITS = (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1))
"""A unit, its length in s, and the next smaller one."""
MINUTE_MS = 60_000


def describe_ms(ms: int) -> str:
    """Return a time in at most two units."""
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 10_000:
        return f"{ms // 100 / 10:.1f}s"
    seconds = ms // 1_000
    for unit, size, smaller, smaller_size in UNITS:
        if seconds >= size:
            rest = seconds % size // smaller_size
            return f"{seconds // size}{unit}{rest}{smaller}" if rest else f"{seconds // size}{unit}"
    return f"{seconds}s"


def describe_in_sentence(ms: int, digits: int = 0) -> str:
    """Return a time for a sentence: `12 s`, and from a minute on as in tables: `9m59s`.

    Args:
        ms: how long.
        digits: after the point, of one below a minute.
    """
    return f"{ms / 1000:.{digits}f} s" if ms < MINUTE_MS else describe_ms(ms)
