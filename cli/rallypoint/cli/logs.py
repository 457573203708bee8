"""The only place that configures logging: console on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from rallypoint.wire import log


def configure_logs(level: str, style: str, file: TextIO | None = None) -> None:
    """Send events of `level` and above to standard error, as `style` says.

    Args:
        file: takes the lines in place of standard error, and brings them there.
    """
    log.configure(lambda: _configure(level, style, file or sys.stderr))


def _configure(level: str, style: str, file: TextIO) -> None:
    import structlog

    is_console = style == "console" or (style == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor
    if is_console:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
        stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    else:
        renderer = structlog.processors.JSONRenderer()
        stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            stamp,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=file),
        cache_logger_on_first_use=True,
    )
