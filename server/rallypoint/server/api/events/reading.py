"""Reads of events: which are asked for, which of them are lost, and batches of the others.

A turn only takes references to events, which never change. They are rendered afterwards, in small
steps. An event that many read is encoded once.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from rallypoint.server.api.events.views import KINDS, event_message
from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import require
from rallypoint.server.contract.pace import Pace
from rallypoint.server.contract.pages import PAGE_MAX, Room, read_token
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.events import Event, EventKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.clocks import Clocks
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator, InputRefused
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.wire.limits import NUMBER_MAX

LOOK_MAX = 1_000
"""Events that one turn looks at: about 0.1 ms."""
ENCODED_MAX = 4_096
"""Encoded events that are kept for other readers: about 1 MB."""


class Asked(Struct, frozen=True):
    """Which events a reader wants."""

    job_id: JobId | None
    """None: of all jobs."""
    kinds: frozenset[EventKind]
    """Empty: all."""
    after: int | None
    """None: only those to come."""
    size: int = PAGE_MAX


class Place(Struct):
    """How far a reader has come. It begins in a turn."""

    after: int
    """Everything up to this sequence was looked at."""
    lost: int
    """What was dropped up to this sequence was dropped before it began; a reader that begins with
    the oldest event misses nothing that it was promised."""

    @property
    def token(self) -> str:
        """Return the place as the token of a page."""
        return f"{self.after}:{self.lost}"


class Batch(Struct):
    """Some of the events after a place."""

    encoded: list[bytes] = field(default_factory=list)
    """The events, each as an answer with one event; one after another they make one answer."""
    has_more: bool = False
    """There was no room for the next event, or not all were looked at."""


_KINDS = {number: kind for kind, number in KINDS.items()}
ANY_LOST = NUMBER_MAX
"""Stands for the lost events of a reader who wants those that are kept, whatever was lost."""


def to_list(request: events_pb2.ListEventsRequest) -> tuple[Asked, Place | None]:
    """Return which events a page shows, and where it begins; None: where the request says.

    Raises:
        InvalidMessage: when the request breaks the contract.
    """
    kinds, job_id = to_kinds(request), JobId(request.job_id) if request.job_id else None
    size = request.page_size or PAGE_MAX
    asked = Asked(job_id, kinds, request.after_sequence, size)
    if not request.page_token:
        return asked, None
    after, lost = read_token(request.page_token, r"(\d{1,16}):(\d{1,16})")
    return asked, Place(int(after), int(lost))


def to_watch(request: events_pb2.WatchEventsRequest) -> Asked:
    """Return which events a watch shows.

    Raises:
        InvalidMessage: when the request breaks the contract.
    """
    kinds, job_id = to_kinds(request), JobId(request.job_id) if request.job_id else None
    after = request.after_sequence if request.HasField("after_sequence") else None
    return Asked(job_id, kinds, after)


def to_kinds(
    request: events_pb2.ListEventsRequest | events_pb2.WatchEventsRequest,
) -> frozenset[EventKind]:
    """Return the wanted kinds of a request; empty: all.

    Raises:
        InvalidMessage: when the request breaks the contract.
    """
    check(request)
    for place, number in enumerate(request.kinds):
        require(number in _KINDS, f"kinds[{place}]", "must be a kind of event")
    return frozenset(_KINDS[number] for number in request.kinds)


def begin(asked: Asked, state: State) -> Place:
    """Return where a reader begins.

    Raises:
        InputRefused: when events after that are lost, or it is not a place of this coordinator.
    """
    log = state.events
    lost = log.lost(asked.job_id)
    if asked.after is None:
        return Place(log.last, lost)
    if asked.after == 0:
        return Place(0, ANY_LOST)
    if not lost <= asked.after <= log.last:
        raise InputRefused(_compacted(state, lost))
    return Place(asked.after, lost)


def check_place(asked: Asked, place: Place, state: State) -> None:
    """Check that nothing after a place is lost.

    Raises:
        InputRefused: when something is, or it is not a place of this coordinator.
    """
    lost = state.events.lost(asked.job_id)
    if lost > max(place.after, place.lost) or place.after > state.events.last:
        raise InputRefused(_compacted(state, lost))


def _compacted(state: State, lost: int) -> Refusal:
    facts = (("oldest_sequence", lost + 1), ("epoch", state.epoch))
    return Refusal(RefusalKind.EVENTS_COMPACTED, facts)


class Reader:
    """Reads batches of events for all callers."""

    def __init__(self, coordinator: Coordinator, pace: Pace) -> None:
        """Read from `coordinator`; all readers share `pace`."""
        self._coordinator = coordinator
        self._pace = pace
        self._encoded: dict[int, bytes] = {}
        """The latest events that were rendered, by sequence."""

    async def take(self, asked: Asked, place: Place) -> Batch:
        """Return the next events after a place, which moves on.

        Raises:
            InputRefused: when some of them are lost.
        """
        batch, room, lost = Batch(), Room(size=asked.size), 0

        def look(state: State, now_ms: int) -> tuple[list[Event], int, bool, Clocks, int]:
            nonlocal lost
            check_place(asked, place, state)
            found = state.events.find(asked.job_id, place.after, LOOK_MAX)
            lost = state.events.lost(asked.job_id)
            has_more = found.looked_at < state.events.last
            return found.events, found.looked_at, has_more, state.clocks, now_ms

        def fill(events: list[Event], clocks: Clocks, now_ms: int) -> Iterator[None]:
            for event in events:
                if asked.kinds and event.kind not in asked.kinds:
                    continue
                encoded = self._encode(event, clocks, now_ms)
                if not room.take(len(encoded)):
                    batch.has_more = True
                    return
                batch.encoded.append(encoded)
                place.after = event.sequence
                yield

        while True:
            events, looked_at, has_more, clocks, now_ms = await self._coordinator.read(look)
            await self._pace.drive(fill(events, clocks, now_ms))
            if batch.has_more:
                return batch
            place.after = looked_at
            if not has_more:
                place.lost = min(place.lost, lost)  # the reader has seen every kept event
                return batch

    def _encode(self, event: Event, clocks: Clocks, now_ms: int) -> bytes:
        encoded = self._encoded.get(event.sequence)
        if encoded is None:
            message = events_pb2.WatchEventsResponse(events=[event_message(event, clocks, now_ms)])
            encoded = self._encoded[event.sequence] = message.SerializeToString()
            if len(self._encoded) > ENCODED_MAX:
                del self._encoded[next(iter(self._encoded))]
        return encoded


def list_answer(batch: Batch, place: Place) -> events_pb2.ListEventsResponse:
    """Return a page; the events have the same field number in both answers."""
    page = events_pb2.ListEventsResponse.FromString(b"".join(batch.encoded))
    page.last_sequence = place.after
    if batch.has_more:
        page.next_page_token = place.token
    return page


def watch_answer(batch: Batch, place: Place) -> bytes:
    """Return an encoded answer of a watch."""
    last = events_pb2.WatchEventsResponse(last_sequence=place.after)
    return b"".join((*batch.encoded, last.SerializeToString()))
