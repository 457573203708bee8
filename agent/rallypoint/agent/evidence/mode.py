"""How workers are armed, so that they show what they do."""

from __future__ import annotations

from enum import Enum

from rallypoint.base.values import BadValue


class Arming(Enum):
    """How the workers of a node are armed."""

    OFF = "off"
    """Not at all."""
    SIGNALS = "signals"
    """A fatal signal prints their stacks."""
    FULL = "full"
    """They also show stacks and collectives while they run."""


def parse_arming(value: object) -> Arming:
    """Return the value that a text names.

    Raises:
        BadValue: it names none.
    """
    try:
        return value if isinstance(value, Arming) else Arming(str(value).strip().lower())
    except ValueError:
        names = ", ".join(one.value for one in Arming)
        raise BadValue(f"{value!r} is not one of {names}") from None
