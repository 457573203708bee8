"""The values of events: names, fields and JSON are those of torch 2.13's `elastic.events.api`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum

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


class NodeState(str, Enum):  # noqa: UP042  # as in torch: str() includes the class
    """The states of a node in a rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class RdzvEvent:
    """A step of a rendezvous."""

    name: str
    """File and function of the step, such as `handler.py:next_rendezvous`."""
    run_id: str
    """The job's id."""
    message: str
    hostname: str
    pid: int
    """Process of the node's agent."""
    node_state: NodeState
    master_endpoint: str = ""
    """HOST:PORT of the round's store; empty: unknown."""
    rank: int | None = None
    """The node's rank in the round; None: it has none yet."""
    local_id: int | None = None
    """Tells handlers of one process apart; None: there is only one."""
    error_trace: str = ""
    """The traceback of a FAILED step."""

    def __str__(self) -> str:
        """Return the event as JSON."""
        return self.serialize()

    @staticmethod
    def deserialize(data: str | RdzvEvent) -> RdzvEvent:
        """Return the event that `serialize` has written; an event is returned as it is.

        Raises:
            ValueError: the text is not JSON.
            KeyError: the state is missing or unknown.
            TypeError: other fields are missing or unknown.
        """
        if isinstance(data, RdzvEvent):
            return data
        fields = json.loads(data)
        return RdzvEvent(**{**fields, "node_state": NodeState[fields["node_state"]]})

    def serialize(self) -> str:
        """Return the event as one line of JSON."""
        return json.dumps(asdict(self))
