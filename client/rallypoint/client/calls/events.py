"""EventService."""

from __future__ import annotations

from collections.abc import Iterable

from rallypoint.client.attempts import Method
from rallypoint.client.calls.lists import Following, Listing
from rallypoint.v1 import event_service_pb2 as events_pb2

_SERVICE = "/rallypoint.v1.EventService/"
LIST_EVENTS = Method(
    f"{_SERVICE}ListEvents", events_pb2.ListEventsRequest, events_pb2.ListEventsResponse
)
WATCH_EVENTS = Method(
    f"{_SERVICE}WatchEvents", events_pb2.WatchEventsRequest, events_pb2.WatchEventsResponse
)


def list_events(
    job_id: str, kinds: Iterable[events_pb2.EventKind.ValueType], after: int | str, page_size: int
) -> Listing[events_pb2.ListEventsRequest, events_pb2.ListEventsResponse, events_pb2.Event]:
    """List events that are kept."""
    request = events_pb2.ListEventsRequest(job_id=job_id, kinds=kinds, page_size=page_size)
    if isinstance(after, str):
        request.after_position = after
    else:
        request.after_sequence = after
    return Listing(LIST_EVENTS, request, lambda page: page.events)


def watch_events(
    job_id: str, kinds: Iterable[events_pb2.EventKind.ValueType], after: int | str | None
) -> Following[events_pb2.WatchEventsRequest, events_pb2.WatchEventsResponse, events_pb2.Event]:
    """Follow events.

    Every answer says up to which sequence all events were sent, or position with several
    coordinators. The next connection begins after it.
    """
    request = events_pb2.WatchEventsRequest(job_id=job_id, kinds=kinds)
    if isinstance(after, str):
        request.after_position = after
    elif after is not None:
        request.after_sequence = after

    def take(answer: events_pb2.WatchEventsResponse) -> Iterable[events_pb2.Event]:
        if answer.position:
            request.after_position = answer.position
            request.ClearField("after_sequence")
        else:
            request.after_sequence = answer.last_sequence
        return answer.events

    return Following(WATCH_EVENTS, request, take)
