"""What a person should know about what a command line means here, said once the log is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """One event of the log."""

    event: str
    """A past-tense fact, the same whatever the values."""
    fields: Mapping[str, object]
    is_warning: bool = True
    """Whether something that was asked for is not done."""
