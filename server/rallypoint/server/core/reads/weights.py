"""How much memory a record of the journal takes."""

from __future__ import annotations

from rallypoint.server.core.keyspace.keyspace import size_of, size_of_answer
from rallypoint.server.core.messages.records import BarrierArrived, EventsLogged, KeysWritten
from rallypoint.server.core.reads.replay import (
    BarrierSnapshot,
    EventsSnapshot,
    JournalRecord,
    KeysSnapshot,
)

EVENT_BYTES = 512
"""Memory of an event, about."""


def weight_of(record: JournalRecord) -> int:
    """Return the bytes of what grows with a record; any other record is small."""
    match record:
        case KeysWritten(changes=changes, answer=answer):
            changed = sum(size_of(change.place, change.entry) for change in changes)
            return changed + size_of_answer(answer)
        case KeysSnapshot(space=space):
            return space.weight
        case BarrierArrived(arrival=arrival):
            return len(arrival.payload)
        case BarrierSnapshot(arrivals=arrivals):
            return sum(len(arrival.payload) for _, arrival in arrivals)
        case EventsLogged(events=events):
            return len(events) * EVENT_BYTES
        case EventsSnapshot(log=log):
            return len(log.all) * EVENT_BYTES
        case _:
            return 0
