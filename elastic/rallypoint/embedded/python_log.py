"""Logs through Python's `logging`, because the program around us decides where its log goes.

Where that program has not configured `logging`, the lines go to standard error.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from rallypoint.base.log import format_value, use_logger

LEVEL_ENV = "LOGLEVEL"
"""torch's variable for the level of its launcher's log."""


class PythonLogger:
    """Writes events as lines of text to the logger "rallypoint"."""

    def __init__(self) -> None:
        """Find the logger, and let its lines be seen if nothing else is configured."""
        self._logger = logging.getLogger("rallypoint")
        if not self._logger.hasHandlers():
            handler = _LastHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s rallypoint %(message)s"))
            self._logger.addHandler(handler)
        elif not _is_of_torchrun(logging.root.handlers):
            return  # the program has chosen its level, too
        if self._logger.level == logging.NOTSET:
            self._logger.setLevel(_find_level())

    def debug(self, event: str, **fields: Any) -> None:
        """Log an event."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log an event."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log an event."""
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        trace = fields.pop("exc_info", None)
        pairs = " ".join(f"{key}={format_value(value)}" for key, value in fields.items())
        name = logging.getLevelName(level).lower()
        line = f"{name} {event} {pairs}".rstrip()
        self._logger.log(level, "%s", line, exc_info=trace)


class _LastHandler(logging.StreamHandler[Any]):
    """Writes to standard error until the program adds its own handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.root.handlers:
            self.setStream(sys.stderr)  # a notebook may have replaced it
            super().emit(record)


def _is_of_torchrun(handlers: list[logging.Handler]) -> bool:
    """Return whether torchrun has configured logging without meaning to, as that of torch 2.4 does:
    it logs a line by `logging.info`, and from then on Python shows warnings alone."""
    return "torch.distributed.run" in sys.modules and all(
        handler.formatter is not None and handler.formatter._fmt == logging.BASIC_FORMAT
        for handler in handlers
    )


def _find_level() -> int:
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL_ENV, "").upper())
    return logging.INFO if level is None else level


def use_python_log() -> None:
    """Log through Python's `logging`, unless the command line has configured a log."""
    use_logger(PythonLogger())
