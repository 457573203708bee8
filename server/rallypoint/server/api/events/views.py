"""Events as readers see them: a typed message, and one line for a person."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from rallypoint.base.printable import to_printable_line
from rallypoint.server.contract.mappers import DEPARTURES
from rallypoint.server.contract.round import marks_message
from rallypoint.server.contract.times import to_timestamp
from rallypoint.server.core.model.events import EVENTS, TEXT_MAX, Event, EventKind
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.state.clocks import Clocks
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration
from rallypoint.wire.mapping import numbers_of, prefix_of

Facts = dict[str, Any]
"""The facts of an event, by name."""
ARMS = {kind: kind.name.lower() for kind in EventKind}
"""The field of Event that each kind sets."""
KINDS = numbers_of(EventKind, events_pb2.EventKind.DESCRIPTOR)
"""The kinds in the contract."""
_FACTS = {
    "break_count": "breaks",
    "connection_count": "sessions",
    "drain_timeout": "time_ms",
    "group_world_size": "nodes",
    "node_count": "nodes",
    "node_name": "node",
    "old_name": "before",
    "other_node_name": "other_node",
    "quarantine_time": "for_ms",
    "reason": "why",
    "restart_count": "restarts",
    "started_after": "took_ms",
    "still_for": "still_ms",
}
"""The fact that each field of a detail shows, if its name differs."""
_ROUND_REASONS = {
    EventKind.ROUND_SEALED: "began",
    EventKind.ROUND_STOPPED: "reason",
    EventKind.ROUND_SETTLED: "ended",
}
"""The same for the field `reason`, where it is that of a round."""


def event_message(event: Event, clocks: Clocks, now_ms: int) -> events_pb2.Event:
    """Return an event.

    Args:
        event: the event.
        clocks: of its journal.
        now_ms: journal time.
    """
    facts = dict(event.facts)
    detail: dict[str, Any] = {ARMS[event.kind]: _show(event.kind, facts)}
    return events_pb2.Event(
        sequence=event.sequence,
        time=to_timestamp(event.at_ms, clocks, now_ms),
        epoch=event.epoch,
        job_id=event.job_id,
        run=event.run,
        round=event.round,
        text=_describe(event, facts),
        **detail,
    )


def _show(kind: EventKind, facts: Facts) -> dict[str, Any]:
    """Return the fields of the detail of an event; what the event does not say is absent."""
    shown = {
        field: convert(facts[name]) for field, name, convert in _fields_of(kind) if name in facts
    }
    if kind is EventKind.ROUND_PROGRESSED:
        shown["timeline"] = marks_message(facts)
    elif kind is EventKind.NODE_DEPARTED:
        departure = DEPARTURES[RoundReason(facts["departure"])]
        has_finished = facts["has_finished"]
        shown["kind"] = job_pb2.DEPARTURE_KIND_FINISHED if has_finished else departure
    return shown


@cache
def _fields_of(kind: EventKind) -> tuple[tuple[str, str, Callable[[Any], Any]], ...]:
    """Return the fields of a detail, each with its fact and what converts that."""
    fields = getattr(events_pb2.Event(), ARMS[kind]).DESCRIPTOR.fields
    names = {**_FACTS, "reason": _ROUND_REASONS.get(kind, _FACTS["reason"])}
    return tuple((one.name, names.get(one.name, one.name), _converter(one)) for one in fields)


def _converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    enum = field.enum_type
    if enum is not None:
        prefix = prefix_of(enum)
        return lambda value: enum.values_by_name[prefix + value.upper().replace(" ", "_")].number
    return to_duration if field.message_type is not None else lambda value: value


def _describe(event: Event, facts: Facts) -> str:
    known = {"run": event.run, "round": event.round, **facts}
    if "took_ms" in facts:
        known["took"] = f"{facts['took_ms'] / 1000:.2f} s"
    line = EVENTS[event.reason][1].format(**known)
    why = facts.get("why", "")
    return to_printable_line(f"{line}: {why}" if why else line)[:TEXT_MAX]
