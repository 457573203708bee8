"""The only place that configures logging: aligned lines of text, or JSON on request.

A line of text is the time, the level, the event, then key=value fields:

    2026-11-21 14:03:11 info    round_began              round=1 ranks=0-7

The renderer is our own, because structlog's imports more and delays the first log line.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from rallypoint.base import log

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

LEVEL_WIDTH = 7
EVENT_WIDTH = 24
"""Columns; longer names push their fields to the right."""
_DIM, _BOLD, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_LEVEL_COLOURS = {
    "debug": "\x1b[2m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[31m",
}


def configure_logs(level: str, style: str, file: TextIO | None = None) -> None:
    """Log events of `level` and above to standard error.

    Args:
        level: debug, info, warning or error.
        style: text or json.
        file: receives the lines instead, and forwards them to standard error.
    """
    log.configure(lambda: _configure(level, style, file or sys.stderr))


def _configure(level: str, style: str, file: TextIO) -> None:
    import structlog

    renderer: Processor
    if style == "json":
        renderer = structlog.processors.JSONRenderer()
        stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    else:
        renderer = TextRenderer(has_colours=wants_colours(sys.stderr, os.environ))
        stamp = structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False)
    structlog.configure(
        processors=[
            log.merge_context,
            structlog.processors.add_log_level,
            stamp,
            structlog.processors.format_exc_info,
            put_event_first,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=file),
        cache_logger_on_first_use=True,
    )


def wants_colours(file: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether to use colours: on a terminal that has them, unless NO_COLOR is set."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return file.isatty()


def put_event_first(logger: Any, method: str, fields: EventDict) -> EventDict:
    """Order the fields of an event: time, level, event, then the rest."""
    return {name: fields.pop(name) for name in ("timestamp", "level", "event")} | dict(fields)


class TextRenderer:
    """Renders an event as one line; the traceback of an exception follows it."""

    def __init__(self, *, has_colours: bool) -> None:
        """Choose whether lines have colours."""
        self._has_colours = has_colours

    def __call__(self, logger: Any, method: str, fields: EventDict) -> str:
        """Return the line. `fields` holds timestamp, level, event and the event's own fields."""
        stamp, level, event = (str(fields.pop(name)) for name in ("timestamp", "level", "event"))
        traceback = fields.pop("exception", "")
        pairs = " ".join(
            f"{self._paint(_DIM, f'{key}=')}{log.format_value(value)}"
            for key, value in fields.items()
        )
        padded = f"{event:{EVENT_WIDTH}}" if pairs else event
        line = " ".join(
            (
                self._paint(_DIM, stamp),
                self._paint(_LEVEL_COLOURS.get(level, ""), f"{level:{LEVEL_WIDTH}}"),
                self._paint(_BOLD, padded),
                pairs,
            )
        ).rstrip()
        return f"{line}\n{traceback}" if traceback else line

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._has_colours and colour else text
