"""Events, as both forms of the client read them."""

from __future__ import annotations

import grpc
import pytest

from rallypoint.client import errors
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.wire.errors import pack_status
from support.clients.scripted import BROKEN, calling

FORMS = pytest.mark.parametrize("form", ["sync", "aio"])
SEALED = events_pb2.EVENT_KIND_ROUND_SEALED
LOST = pack_status(
    grpc.StatusCode.OUT_OF_RANGE,
    "lost",
    details_pb2.EventsCompacted(oldest_sequence=40, epoch=9),
    reason=details_pb2.REFUSAL_REASON_EVENTS_COMPACTED,
)


def events(last: int, *sequences: int) -> events_pb2.WatchEventsResponse:
    """Return an answer with these events, which says that all up to `last` were looked at."""
    return events_pb2.WatchEventsResponse(
        last_sequence=last, events=[events_pb2.Event(sequence=number) for number in sequences]
    )


@FORMS
async def test_watch_continues_after_what_it_has_seen(form: str) -> None:
    """Over three connections, one of which brought no event and one only how far it is."""
    async with calling(form) as at:
        at.script.answers["WatchEvents"] = [
            [events(4), events(5, 5), BROKEN],
            [BROKEN],
            [events(9), BROKEN],
            [events(11, 10, 11)],
        ]
        seen = await at.list("watch_events", "j", kinds=[SEALED])
        asked = at.script.requests["WatchEvents"]

    assert [5, 10, 11] == [event.sequence for event in seen]
    assert not asked[0].HasField("after_sequence")
    assert [5, 5, 9] == [one.after_sequence for one in asked[1:]]
    assert [("j", [SEALED])] * 4 == [(one.job_id, list(one.kinds)) for one in asked]


@FORMS
async def test_watch_may_begin_with_the_oldest_event(form: str) -> None:
    """Zero is a place, and its absence is another one."""
    async with calling(form) as at:
        at.script.answers["WatchEvents"] = [[events(4)]]
        assert [] == await at.list("watch_events", after=0)
        (asked,) = at.script.requests["WatchEvents"]

    assert asked.HasField("after_sequence")


@FORMS
async def test_gap_in_a_watch_is_an_error(form: str) -> None:
    """A coordinator that has lost events is not asked again."""
    async with calling(form) as at:
        at.script.answers["WatchEvents"] = [[events(4), events(5, 5), BROKEN], [LOST]]
        with pytest.raises(errors.EventsCompacted) as caught:
            await at.list("watch_events", "j")

    assert (40, 9) == (caught.value.oldest_sequence, caught.value.epoch)
