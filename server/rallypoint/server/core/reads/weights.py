"""How much memory a record of the journal takes."""

from __future__ import annotations

from rallypoint.server.core.keyspace.keyspace import OBJECT_BYTES, size_of, size_of_answer
from rallypoint.server.core.messages.records import BarrierArrived, EventsLogged, KeysWritten
from rallypoint.server.core.reads.replay import (
    BarrierSnapshot,
    JournalRecord,
    KeysRestored,
)

EVENT_BYTES = 512
"""Memory of an event, about."""


def weight_of(record: JournalRecord) -> int:
    """Return the bytes of what grows with a record; any other record is small."""
    match record:
        case KeysWritten(changes=changes, answer=answer):
            changed = sum(size_of(change.place, change.entry) for change in changes)
            return changed + size_of_answer(answer)
        case KeysRestored(entries=entries, changes=changes, requests=requests):
            kept = sum(size_of(place, entry) for place, entry in entries)
            changed = sum(size_of(change.place, change.entry) for change in changes)
            objects = len(entries) + len(changes) + len(requests)
            answered = sum(size_of_answer(answer) for _, answer in requests)
            return kept + changed + answered + objects * OBJECT_BYTES
        case BarrierArrived(arrival=arrival):
            return len(arrival.payload)
        case BarrierSnapshot(arrivals=arrivals):
            return sum(len(arrival.payload) for _, arrival in arrivals)
        case EventsLogged(events=events):
            return len(events) * EVENT_BYTES
        case _:
            return 0
