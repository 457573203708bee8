"""Records events: each goes as one line of JSON to the handler that the caller names."""

from __future__ import annotations

import logging
import os
import sys
import traceback

from rallypoint.agent.embedded.python_log import use_python_log
from rallypoint.base.log import get_logger
from rallypoint.elastic.events.api import Event, NodeState, RdzvEvent
from rallypoint.elastic.events.handlers import RENDEZVOUS, get_logging_handler

log = get_logger()

LEVEL_ENV = "LOGLEVEL"
"""torch's variable: WARNING or higher turns events off."""

_failed: set[str] = set()
"""Destinations whose failure was reported."""


def record(event: Event, destination: str = "null") -> None:
    """Record an event.

    A handler that raises does not stop the caller: the first failure of each is logged.

    Args:
        event: what has happened.
        destination: name of the handler; see `handlers`.

    Raises:
        KeyError: no handler has this name.
    """
    _record(event, destination)


def record_rdzv_event(event: RdzvEvent) -> None:
    """Record a step of a rendezvous; it goes to the handler `dynamic_rendezvous`."""
    _record(event, RENDEZVOUS)


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Record a step of a rendezvous; return at once if no handler takes these events.

    Args:
        run_id: the job's id.
        message: the step, as a sentence.
        node_state: state of the node; FAILED adds the traceback of the current exception.
        name: of the step; empty: the calling function.
        hostname: empty: this host.
        pid: None: this process.
        master_endpoint: HOST:PORT of the round's store, if known.
        local_id: tells handlers of one process apart.
        rank: the node's rank, if known.
    """
    if isinstance(get_logging_handler(RENDEZVOUS), logging.NullHandler):
        return
    from rallypoint.base.names import find_full_name  # loads asyncio, which no worker needs here

    caller = sys._getframe(1).f_code
    event = RdzvEvent(
        name=f"{os.path.basename(caller.co_filename)}:{name or caller.co_name}",
        run_id=run_id,
        message=message,
        hostname=hostname or find_full_name(),
        pid=pid or os.getpid(),
        node_state=node_state,
        master_endpoint=master_endpoint,
        rank=rank,
        local_id=local_id,
        error_trace=traceback.format_exc() if node_state is NodeState.FAILED else "",
    )
    record_rdzv_event(event)


def _record(event: Event | RdzvEvent, destination: str) -> None:
    handler = get_logging_handler(destination)
    if isinstance(handler, logging.NullHandler) or not _is_wanted():
        return
    name = f"torchelastic-events-{destination}"
    entry = logging.LogRecord(name, logging.INFO, __file__, 0, event.serialize(), None, None)
    try:
        if entry.levelno >= handler.level:
            handler.handle(entry)
    except Exception as error:  # noqa: BLE001  # a stranger's code must not stop the job
        _report(destination, error)


def _is_wanted() -> bool:
    """Return whether torch's variable lets events pass; a level that nothing has counts as INFO."""
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL_ENV, "INFO"))
    return level is None or level <= logging.INFO


def _report(destination: str, error: Exception) -> None:
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
