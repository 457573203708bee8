"""Events of a job for other programs, sent to handlers: torch's `elastic.events` without torch.

from rallypoint.elastic import events

events.register_handler("mine", MyHandler())  # a logging.Handler
event = events.Event("epoch.done", events.EventSource.WORKER, metadata={"epoch": 3})
events.record(event, "mine")
"""

from rallypoint.elastic.events.api import (
    Event,
    EventMetadataValue,
    EventSource,
    NodeState,
    RdzvEvent,
)
from rallypoint.elastic.events.handlers import (
    UnknownHandlerError,
    get_logging_handler,
    list_handlers,
    register_handler,
)
from rallypoint.elastic.events.recording import (
    construct_and_record_rdzv_event,
    record,
    record_rdzv_event,
)

__all__ = [
    "Event",
    "EventMetadataValue",
    "EventSource",
    "NodeState",
    "RdzvEvent",
    "UnknownHandlerError",
    "construct_and_record_rdzv_event",
    "get_logging_handler",
    "list_handlers",
    "record",
    "record_rdzv_event",
    "register_handler",
]
