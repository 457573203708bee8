"""Loggers that import structlog when something is first logged.

structlog takes 25 ms to import, and twice that where rich is installed: its console renderer, which
nothing here uses, imports rich. So it is imported late and without rich. A library only gets a
logger; the command configures it (`configure`), and that too happens at the first event.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any

_UNUSED = ("rich", "better_exceptions")
"""Packages that structlog imports if they are installed, and that nothing here uses."""

_context: ContextVar[dict[str, Any]] = ContextVar("log_context", default={})  # noqa: B039  # never changed in place
"""Fields of every event of the current task."""

_configure: Callable[[], None] | None = None
_is_configured = False


def import_structlog() -> ModuleType:
    """Import structlog without the optional packages that it would import."""
    absent = [name for name in _UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: cannot be imported
    try:
        import structlog
    finally:
        for name in absent:
            del sys.modules[name]
    return structlog


def configure(how: Callable[[], None]) -> None:
    """Run `how` before the first event is logged."""
    global _configure, _is_configured
    _configure, _is_configured = how, False


class Logger:
    """Stands for `structlog.get_logger()` until it is used."""

    __slots__ = ("_logger",)

    def __init__(self) -> None:
        """Start without importing structlog."""
        self._logger: Any = None

    def __getattr__(self, name: str) -> Any:
        """Return a method of the real logger."""
        global _is_configured
        if self._logger is None:
            self._logger = import_structlog().get_logger()
        if not _is_configured:
            _is_configured = True
            if _configure is not None:
                _configure()
        return getattr(self._logger, name)


def get_logger() -> Logger:
    """Return a logger for a module."""
    return Logger()


def new_incident() -> str:
    """Return an id that links an answer to the line in the log about an internal error."""
    return os.urandom(4).hex()


def bind_context(**fields: str) -> None:
    """Add fields to all later events of the current task, and of tasks that it starts.

    Stands for `structlog.contextvars`, which would import structlog at the first call.
    """
    _context.set(_context.get() | fields)


def merge_context(logger: object, method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Add the bound fields to an event, after its own: a processor of structlog."""
    return dict(event) | {k: v for k, v in _context.get().items() if k not in event}
