"""Loggers that import structlog when something is first logged.

structlog takes 25 ms to import, and twice that where rich is installed: its console renderer, which
nothing here uses, imports rich. So it is imported late and without rich. A library only gets a
logger; the command configures it (`configure`), and that too happens at the first event.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

_UNUSED = ("rich", "better_exceptions")
"""Packages that structlog imports if they are installed, and that nothing here uses."""

_context: ContextVar[dict[str, Any]] = ContextVar("log_context", default={})  # noqa: B039  # never changed in place
"""Fields of every event of the current task."""

_configure: Callable[[], None] | None = None
_is_configured = False
_replacement: Any = None
"""The logger of a program that is not ours; None: structlog."""

_QUOTED = frozenset(" \t\"'=")
"""A value with one of these, or an unprintable character, is quoted."""


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


def configure(how: Callable[[], None] | None) -> None:
    """Run `how` before the first event is logged; None: leave structlog as it is."""
    global _configure, _is_configured
    _configure, _is_configured = how, False


def use_logger(logger: Any) -> None:
    """Log to `logger` instead of structlog, unless `configure` was called; None: to structlog.

    A program that only embeds a part of ours may configure structlog for itself.
    """
    global _replacement
    _replacement = None if _configure is not None else logger


class Logger:
    """Stands for `structlog.get_logger()` until it is used."""

    __slots__ = ("_logger",)

    def __init__(self) -> None:
        """Start without importing structlog."""
        self._logger: Any = None

    def __getattr__(self, name: str) -> Any:
        """Return a method of the real logger."""
        global _is_configured
        if _replacement is not None:
            return getattr(_replacement, name)
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


def to_json_line(level: str, event: str, **fields: object) -> str:
    """Return an event as the line of a JSON log, where the log itself is out of reach."""
    stamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"timestamp": stamp, "level": level, "event": event, **fields})


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


def format_value(value: object) -> str:
    """Return a field's value, quoted unless it is one word."""
    text = value if isinstance(value, str) else _join(value)
    if text and text.isprintable() and not _QUOTED.intersection(text):
        return text
    return repr(text)


def _join(value: object) -> str:
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(map(str, sorted(value) if isinstance(value, (set, frozenset)) else value))
    return str(value)
