"""How workers are armed, so that they show what they do."""

from __future__ import annotations

from enum import Enum


class Arming(Enum):
    """How the workers of a node are armed."""

    OFF = "off"
    """Not at all."""
    SIGNALS = "signals"
    """A fatal signal prints their stacks."""
    FULL = "full"
    """They also show stacks and collectives while they run."""
