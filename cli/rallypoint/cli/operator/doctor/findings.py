"""What a check has found."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

_UNITS = (("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0), ("second", 1.0))


class Level(Enum):
    """How serious a finding is."""

    OK = "ok"
    """Nothing to do."""
    WARNING = "warning"
    """It works now, and may not later or not for everyone."""
    PROBLEM = "problem"
    """It does not work."""


class Finding(Struct, frozen=True):
    """The result of one check."""

    check: str
    """Name of the check, such as "connection"."""
    level: Level
    text: str
    """What is right or wrong, in one sentence without a full stop."""
    advice: str = ""
    """What to do. Empty only when it is right."""


def ok(check: str, text: str) -> Finding:
    """Return that something is right."""
    return Finding(check, Level.OK, text)


def warning(check: str, text: str, advice: str) -> Finding:
    """Return that something may become wrong."""
    return Finding(check, Level.WARNING, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    """Return that something is wrong."""
    return Finding(check, Level.PROBLEM, text, advice)


def describe(seconds: float) -> str:
    """Return a duration in its largest unit, such as "3 days" or "1.2 seconds"; at least 1 ms."""
    for name, size in _UNITS:
        if seconds >= size:
            count = seconds / size
            shown = f"{count:.1f}" if count < 10 else f"{count:.0f}"
            shown = shown.removesuffix(".0")
            return f"1 {name}" if shown == "1" else f"{shown} {name}s"
    return f"{max(seconds * 1000, 1):.0f} ms"
