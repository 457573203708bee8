"""Notes for the user about the effect of a command line; logged once the log is configured."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Note(Struct, frozen=True):
    """One event of the log."""

    event: str
    """A constant past-tense fact."""
    fields: Mapping[str, object]
    is_warning: bool = True
    """Whether a request of the user has no effect."""
