"""The handlers of events, by name: where `--event-log-handler` and `event_log_handler` look.

A name means, in this order

  * `console` and `null`: they write to standard error, and nowhere;
  * what the program has registered under this name (`register_handler`);
  * a plug-in: an entry point of one of the groups in `GROUPS`. It names a `logging.Handler`, a
    class of handlers, or a function that returns one; it is called without arguments;
  * `dynamic_rendezvous`: steps of a rendezvous, which go nowhere until a handler takes the name.

A job must not fail because a plug-in does: one that cannot be loaded is reported once, and its
events are dropped.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, TextIO

from rallypoint.agent.embedded.python_log import use_python_log
from rallypoint.base.interpreter import hear_python_path
from rallypoint.base.log import get_logger

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = get_logger()

GROUPS = ("rallypoint.event_handlers", "torchrun.event_handlers")
"""Groups of entry points; the first one that has a name wins."""
RENDEZVOUS = "dynamic_rendezvous"
"""torch's name for the destination of rendezvous events."""


class UnknownHandlerError(KeyError):
    """No handler of events has this name."""

    def __init__(self, name: str) -> None:
        """Take the name that nothing has."""
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        """Return one line that lists the known names."""
        known = ", ".join(list_handlers())
        return f"no event handler is named {self.name!r}; known: {known}"


class ConsoleHandler(logging.StreamHandler[TextIO]):
    """Writes to the standard error of the moment, which notebooks and tests replace.

    After `setStream` it writes to that stream.
    """

    def __init__(self) -> None:
        """Take no stream: it is looked up at each event."""
        logging.Handler.__init__(self)
        self._stream: TextIO | None = None

    @property
    def stream(self) -> TextIO:
        """Where the next event goes."""
        return sys.stderr if self._stream is None else self._stream

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        self._stream = stream


_BUILT_IN: dict[str, logging.Handler] = {
    "console": ConsoleHandler(),
    "null": logging.NullHandler(),
}
_registered: dict[str, logging.Handler] = {}
_plugins: dict[str, logging.Handler] = {}
"""Plug-ins that were loaded, or NullHandler for those that could not be."""
_loading = threading.RLock()


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler with this name.

    Raises:
        UnknownHandlerError: if no handler has the name; it is a KeyError, as in torch.
    """
    handler = _BUILT_IN.get(destination) or _registered.get(destination)
    return handler if handler is not None else _get_plugin(destination)


def register_handler(name: str, handler: logging.Handler) -> None:
    """Let events go to this handler under a name; an earlier handler of the name is replaced.

    Raises:
        ValueError: the name is one of the built-in handlers' names.
        TypeError: it is not a `logging.Handler`.
    """
    if name in _BUILT_IN:
        raise ValueError(f"the event handler {name!r} is built in; choose another name")
    if not isinstance(handler, logging.Handler):
        raise TypeError(f"not a logging.Handler: {handler!r}; derive it from that class")
    _registered[name] = handler


def list_handlers() -> list[str]:
    """Return the known names, sorted; plug-ins are not loaded for it."""
    return sorted({*_BUILT_IN, RENDEZVOUS, *_registered, *_find_plugins()})


def _get_plugin(name: str) -> logging.Handler:
    with _loading:
        if name not in _plugins:
            point = _find_plugins().get(name)
            if point is not None:
                _plugins[name] = _load(point)
            elif name == RENDEZVOUS:
                _plugins[name] = logging.NullHandler()
            else:
                raise UnknownHandlerError(name)
        return _plugins[name]


def _find_plugins() -> dict[str, EntryPoint]:
    """Return the entry points of both groups, by name."""
    from importlib import metadata  # slow to import, and few programs need it

    hear_python_path()
    points: dict[str, EntryPoint] = {}
    for group in GROUPS:
        for point in metadata.entry_points(group=group):
            points.setdefault(point.name, point)
    return points


def _load(point: EntryPoint) -> logging.Handler:
    """Return the plug-in's handler, or one that drops everything if there is none."""
    try:
        found = point.load()
        handler = found if isinstance(found, logging.Handler) else found()
        if isinstance(handler, logging.Handler):
            return _report_errors(handler)
        why = f"it is {type(handler).__name__}, not a logging.Handler"
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a stranger's code, reported here
        why = f"{type(error).__name__}: {error}"
    then = "its events are dropped; repair or uninstall the plug-in"
    use_python_log()
    log.warning(
        "event_handler_not_loaded", handler=point.name, source=point.value, why=why, then=then
    )
    return logging.NullHandler()


def _report_errors(handler: logging.Handler) -> logging.Handler:
    """Let errors of a handler reach `record`; logging's default prints a traceback for each."""
    if type(handler).handleError is logging.Handler.handleError:
        handler.handleError = _raise_current  # type: ignore[method-assign]
    return handler


def _raise_current(record: logging.LogRecord) -> None:
    """Raise the exception that is being handled."""
    raise  # logging calls this in its except clause
