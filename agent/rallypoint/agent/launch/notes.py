"""Notes for the user about the effect of a launch; logged once the log is configured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from rallypoint.base.log import get_logger

log = get_logger()


class Note(Struct, frozen=True):
    """One event of the log."""

    event: str
    """A constant past-tense fact."""
    fields: Mapping[str, object]
    is_warning: bool = True
    """Whether a request of the user has no effect."""


def log_notes(notes: Iterable[Note]) -> None:
    """Log all of them."""
    for note in notes:
        (log.warning if note.is_warning else log.info)(note.event, **note.fields)
