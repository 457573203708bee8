"""What a check has found."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


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
