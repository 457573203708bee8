"""Durations as people say them."""

from __future__ import annotations

_UNITS = (("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0), ("second", 1.0))


def describe(seconds: float) -> str:
    """Return a duration in its largest unit, such as "3 days" or "1.2 seconds"; at least 1 ms."""
    for name, size in _UNITS:
        if seconds >= size:
            count = seconds / size
            shown = f"{count:.1f}" if count < 10 else f"{count:.0f}"
            shown = shown.removesuffix(".0")
            return f"1 {name}" if shown == "1" else f"{shown} {name}s"
    return f"{max(seconds * 1000, 1):.0f} ms"
