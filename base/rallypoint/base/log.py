"""Loggers that import structlog when something is first logged.

structlog takes 40-80 ms to import (its console renderer brings rich where that is installed), more
than everything else between the command and the first line of a worker. A library only gets a
logger; the command configures it (`configure`), and that too happens at the first event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_configure: Callable[[], None] | None = None
_is_configured = False


def configure(how: Callable[[], None]) -> None:
    """Run `how` before the first event is logged."""
    global _configure, _is_configured
    _configure, _is_configured = how, False


class Logger:
    """Stands for `structlog.get_logger()` until it is used."""

    __slots__ = ("_logger",)

    def __init__(self) -> None:
        """Begin without the library."""
        self._logger: Any = None

    def __getattr__(self, name: str) -> Any:
        """Return a method of the real logger."""
        global _is_configured
        if self._logger is None:
            import structlog

            self._logger = structlog.get_logger()
        if not _is_configured:
            _is_configured = True
            if _configure is not None:
                _configure()
        return getattr(self._logger, name)


def get_logger() -> Logger:
    """Return a logger for a module."""
    return Logger()
