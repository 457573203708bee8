"""The only place that configures logging: aligned lines of text, or JSON on request.

A line of text is the time, the level, the event, then key=value fields:

    2026-11-21 14:03:11 info    round_began              round=1 ranks=0-7

On a terminal a long line is wrapped between words. The renderer is our own, because structlog's
imports more and delays the first log line.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from rallypoint.base import log
from rallypoint.cli.terminal import find_columns, join_words, wants_colours

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

_log = log.get_logger()

LEVEL_WIDTH = 7
EVENT_WIDTH = 24
"""Columns; longer names push their fields to the right."""
INDENT = len("2026-11-21 14:03:11") + LEVEL_WIDTH + 2
"""Of the other lines of an event that is wrapped: they begin below its name."""
NARROW_INDENT = 4
NARROW_MAX = 2 * INDENT
"""Columns of a terminal in which that indent would leave too little."""
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
        renderer = TextRenderer(
            has_colours=wants_colours(sys.stderr, os.environ),
            find_columns=partial(find_columns, sys.stderr),
        )
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


class PythonLogs(logging.Handler):
    """Passes on to our log what libraries log by Python's `logging`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record. The name of its logger and its text are fields."""
        write = _log.info if record.levelno < logging.WARNING else _log.warning
        write = _log.error if record.levelno >= logging.ERROR else write
        try:
            text = record.getMessage().strip()
        except Exception:  # noqa: BLE001  # a record with arguments that do not fit
            self.handleError(record)
            return
        write("library_logged", logger=record.name, message=text, exc_info=record.exc_info)


def take_python_logs() -> None:
    """Pass warnings of Python, and what libraries log, to our log: all that they would print.

    For a process that is ours; in one that embeds a part of ours they belong to its program.
    """
    logging.getLogger().addHandler(PythonLogs())
    logging.captureWarnings(True)


def put_event_first(logger: Any, method: str, fields: EventDict) -> EventDict:
    """Order the fields of an event: time, level, event, then the rest."""
    return {name: fields.pop(name) for name in ("timestamp", "level", "event")} | dict(fields)


class TextRenderer:
    """Renders an event as one line; the traceback of an exception follows it."""

    def __init__(self, *, has_colours: bool, find_columns: Callable[[], int] = lambda: 0) -> None:
        """Choose whether lines have colours, and how wide they may be: 0 is without a limit."""
        self._has_colours = has_colours
        self._find_columns = find_columns

    def __call__(self, logger: Any, method: str, fields: EventDict) -> str:
        """Return the line. `fields` holds timestamp, level, event and the event's own fields."""
        stamp, level, event = (str(fields.pop(name)) for name in ("timestamp", "level", "event"))
        traceback = fields.pop("exception", "")
        padded = f"{event:{EVENT_WIDTH}}" if fields else event
        padded_level = f"{level:{LEVEL_WIDTH}}"
        head = " ".join(
            (
                self._paint(_DIM, stamp),
                self._paint(_LEVEL_COLOURS.get(level, ""), padded_level),
                self._paint(_BOLD, padded),
            )
        )
        columns = self._find_columns()
        indent = INDENT if columns > NARROW_MAX else NARROW_INDENT
        used = len(f"{stamp} {padded_level} {padded}")
        line = head + join_words(self._words(fields), columns, indent, used=used)
        return f"{line}\n{traceback}" if traceback else line

    def _words(self, fields: EventDict) -> Iterator[tuple[str, int]]:
        """Yield the words of the fields, each with its width."""
        for key, value in fields.items():
            first, *rest = log.format_value(value).split(" ")
            name = f"{key}="
            yield f"{self._paint(_DIM, name)}{first}", len(name) + len(first)
            yield from ((word, len(word)) for word in rest)

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._has_colours and colour else text
