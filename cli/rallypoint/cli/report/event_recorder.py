"""Records the events of an agent with the handler that `--event-log-handler` names.

A handler is a plug-in, which may block or be slow to import: it runs in a thread, and the end of
the agent waits for it briefly. The console's handler never blocks, and needs no thread.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Self

from msgspec import Struct

from rallypoint.agent.settings import Settings
from rallypoint.agent.torchelastic.events import About, Event, EventLog, Moment
from rallypoint.base.console import Console, open_text
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger
from rallypoint.elastic import events
from rallypoint.elastic.events import ConsoleHandler

log = get_logger()

EVENTS_LIMIT_S = 2.0
"""How long the end of the agent waits for its last events."""


class EventRecorder(Struct):
    """Passes events to one handler."""

    destination: str
    """Name of the handler."""
    thread: FileThread | None
    """Calls the handler; None: the agent itself does."""
    _is_behind: bool = False
    """An event was dropped because too many wait."""

    @classmethod
    def open(cls, destination: str, console: Console) -> Self:
        """Return a recorder; the console's handler writes to `console`."""
        if destination != "console":
            return cls(destination, FileThread("events"))
        handler = events.get_logging_handler(destination)
        assert isinstance(handler, ConsoleHandler)
        handler.setStream(open_text(console))
        return cls(destination, None)

    def new_log(self, settings: Settings) -> EventLog:
        """Return the log of an agent that starts now."""
        start_ns = time.monotonic_ns()
        about = About(settings.job_id, settings.role, settings.host_name, settings.launch.script)
        return EventLog(about, self.record, partial(_moment, start_ns))

    def record(self, fields: Event) -> None:
        """Record an event; never wait for a plug-in."""
        call = partial(_record, fields, self.destination)
        if self.thread is None:
            call()
            return
        try:
            self.thread.submit(call)
        except OSError as error:  # the handler stands still, or no thread can be started
            if not self._is_behind:
                log.warning("events_dropped", handler=self.destination, why=str(error))
            self._is_behind = True

    def flush(self) -> None:
        """Wait a little for the handler."""
        if self.thread is not None and not self.thread.flush(EVENTS_LIMIT_S):
            why = f"the handler does not return within {EVENTS_LIMIT_S:g} s"
            log.warning("events_dropped", handler=self.destination, why=why)


def _record(fields: dict[str, Any], destination: str) -> None:
    source = events.EventSource(fields["source"])
    events.record(events.Event(**{**fields, "source": source}), destination)


def _moment(start_ns: int) -> Moment:
    now_s = time.time()  # noqa: TID251  # a time stamp that people read
    return Moment(int(now_s * 1000), (time.monotonic_ns() - start_ns) // 1_000_000)
