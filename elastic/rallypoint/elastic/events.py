"""Events of a job for other programs, sent to handlers: torch's `elastic.events` without torch.

    from rallypoint.elastic import events

    events.register_handler("mine", MyHandler())  # a logging.Handler
    event = events.Event("epoch.done", events.EventSource.WORKER, metadata={"epoch": 3})
    events.record(event, "mine")

Names, fields and JSON are those of torch 2.13. Each event goes as one line of JSON to a handler,
which `--event-log-handler` or `event_log_handler` names. A name means, in this order

  * `console` and `null`: they write to standard error, and nowhere;
  * what the program has registered under this name (`register_handler`);
  * a plug-in: an entry point of one of the groups in `GROUPS`. It names a `logging.Handler`, a
    class of handlers, or a function that returns one; it is called without arguments;
  * `dynamic_rendezvous`, which torch has for the steps of its rendezvous: nowhere.

A job must not fail because a plug-in does: one that cannot be loaded is reported once, and its
events are dropped.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TextIO

from rallypoint.base.interpreter import hear_python_path
from rallypoint.base.log import get_logger
from rallypoint.embedded.python_log import LEVEL_ENV, use_python_log

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = get_logger()

GROUPS = ("rallypoint.event_handlers", "torchrun.event_handlers")
"""Groups of entry points; the first one that has a name wins."""

EventMetadataValue = str | int | float | bool | None
"""What the metadata of an event may hold."""


class EventSource(str, Enum):  # noqa: UP042  # as in torch: str() includes the class
    """The producers of events."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass
class Event:
    """Something that has happened to an agent or to one of its workers."""

    name: str
    """Such as `torchelastic.worker.status.START`."""
    source: EventSource
    timestamp: int = 0
    """Unix time in ms; 0: unknown, which is what torch's own agent records."""
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the event as JSON."""
        return self.serialize()

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        """Return the event that `serialize` has written; an event is returned as it is.

        Raises:
            ValueError: the text is not JSON.
            KeyError: the source is missing or unknown.
            TypeError: other fields are missing or unknown.
        """
        if isinstance(data, Event):
            return data
        fields = json.loads(data)
        return Event(**{**fields, "source": EventSource[fields["source"]]})

    def serialize(self) -> str:
        """Return the event as one line of JSON."""
        return json.dumps(asdict(self))


class UnknownHandlerError(KeyError):
    """No handler of events has this name."""

    def __str__(self) -> str:
        """Return one line that lists the known names."""
        return f"no event handler is named {self.args[0]!r}; known: {', '.join(list_handlers())}"


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
    "dynamic_rendezvous": logging.NullHandler(),
    "null": logging.NullHandler(),
}
_registered: dict[str, logging.Handler] = {}
_plugins: dict[str, logging.Handler] = {}
"""Plug-ins that were loaded, or NullHandler for those that could not be."""
_loading = threading.RLock()
_failed: set[str] = set()
"""Names of handlers whose failure was reported."""


def record(event: Event, destination: str = "null") -> None:
    """Record an event, unless torch's variable LOGLEVEL turns events off: WARNING or higher.

    A handler that raises does not stop the caller: the first failure of each is logged.

    Args:
        event: what has happened.
        destination: name of the handler.

    Raises:
        KeyError: no handler has this name.
    """
    handler = get_logging_handler(destination)
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL_ENV, ""), logging.INFO)
    if isinstance(handler, logging.NullHandler) or level > logging.INFO:
        return
    name = f"torchelastic-events-{destination}"
    entry = logging.LogRecord(name, logging.INFO, __file__, 0, event.serialize(), None, None)
    try:
        if entry.levelno >= handler.level:
            handler.handle(entry)
    except Exception as error:  # noqa: BLE001  # a stranger's code must not stop the job
        if destination in _failed:
            return
        _failed.add(destination)
        use_python_log()
        log.warning(
            "event_handler_failed",
            handler=destination,
            error=f"{type(error).__name__}: {error}",
            then="the event is lost and the job continues; later failures are not logged",
        )


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler with this name.

    Raises:
        UnknownHandlerError: if no handler has the name; it is a KeyError, as in torch.
    """
    handler = _BUILT_IN.get(destination) or _registered.get(destination)
    if handler is not None:
        return handler
    with _loading:
        if destination not in _plugins:
            point = _find_plugins().get(destination)
            if point is None:
                raise UnknownHandlerError(destination)
            _plugins[destination] = _load(point)
        return _plugins[destination]


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
    return sorted({*_BUILT_IN, *_registered, *_find_plugins()})


def _find_plugins() -> dict[str, EntryPoint]:
    """Return the entry points of both groups, by name."""
    from importlib import metadata  # slow to import, and few programs need it

    hear_python_path()
    found = [point for group in GROUPS for point in metadata.entry_points(group=group)]
    return {point.name: point for point in reversed(found)}


def _load(point: EntryPoint) -> logging.Handler:
    """Return the plug-in's handler, or one that drops everything if there is none."""
    try:
        found = point.load()
        handler = found if isinstance(found, logging.Handler) else found()
        if isinstance(handler, logging.Handler):
            if type(handler).handleError is logging.Handler.handleError:
                # `record` reports its errors: logging's default prints a traceback for each.
                handler.handleError = _raise_current  # type: ignore[method-assign]
            return handler
        why = f"it is {type(handler).__name__}, not a logging.Handler"
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a stranger's code, reported here
        why = f"{type(error).__name__}: {error}"
    then = "its events are dropped; repair or uninstall the plug-in"
    use_python_log()
    log.warning(
        "event_handler_not_loaded", handler=point.name, source=point.value, why=why, then=then
    )
    return logging.NullHandler()


def _raise_current(record: logging.LogRecord) -> None:
    """Raise the exception that is being handled: logging calls this in its except clause."""
    raise
