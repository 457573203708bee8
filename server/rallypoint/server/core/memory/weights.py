"""How much memory the records of a step take, which what their senders wrote makes large."""

from __future__ import annotations

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages.records import BarrierArrived, EventsLogged, KeysWritten
from rallypoint.server.core.model.keyspace import size_of, size_of_answer
from rallypoint.server.core.state.holding import size_of_opening

EVENT_BYTES = 512
"""Memory of an event, about."""
NODE_BYTES = 1_024


def weight_of(record: JournalRecord) -> int:
    """Return the bytes of what grows with a record; any other record is small."""
    match record:
        case KeysWritten(changes=changes, answer=answer):
            changed = sum(size_of(change.place, change.entry) for change in changes)
            return changed + size_of_answer(answer)
        case BarrierArrived(key=key, expected=expected, participant=who, arrival=arrival):
            opening = 0 if expected is None else size_of_opening(key, expected)
            return opening + len(who.name.encode()) + len(arrival.payload)
        case EventsLogged(events=events):
            return len(events) * EVENT_BYTES
        case _:
            return 0
