"""Lists and watches of the events of all shards.

Each shard numbers its events. A list shows them in the order of their times, as far as the clocks
of the coordinators agree, and those of one shard always in the order of their numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from rallypoint.server.api.events.reading import ANY_LOST, to_kinds
from rallypoint.server.contract.calls import CallRefused, Context
from rallypoint.server.contract.errors import no_owner_status, refusal_status
from rallypoint.server.contract.pages import PAGE_BYTES_MAX, PAGE_MAX, Room, read_token
from rallypoint.server.contract.routes import Route
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.fleet.merging.parts import (
    ShardCalls,
    Take,
    read_position,
    write_position,
)
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.wire.durations import to_unix_ms


async def list_events(
    parts: ShardCalls, route: Route, request: events_pb2.ListEventsRequest, context: Context
) -> events_pb2.ListEventsResponse:
    """Return a page of the events of all shards.

    Raises:
        InvalidMessage: when the request breaks the contract.
        CallRefused: when a shard does not answer, or events are lost.
    """
    to_kinds(request)
    _refuse_number(request.after_sequence)
    after, lost = _begin(request, parts.count)
    size = request.page_size or PAGE_MAX
    requests = [
        events_pb2.ListEventsRequest(kinds=request.kinds, page_size=size, page_token=f"{at}:{gone}")
        for at, gone in zip(after, lost, strict=True)
    ]
    pages = await parts.ask_all(route, requests, context)
    return _merge(pages, size, after, lost)


def _begin(request: events_pb2.ListEventsRequest, count: int) -> tuple[list[int], list[int]]:
    """Return where the page begins in every shard, and up to where lost events do not matter."""
    if request.page_token:
        after, lost = read_token(request.page_token, "([^:]*):([^:]*)")
        return (
            read_position(after, count, "page_token"),
            read_position(lost, count, "page_token"),
        )
    begins = read_position(request.after_position, count, "after_position")
    return begins, [at or ANY_LOST for at in begins]


def _merge(
    pages: Sequence[events_pb2.ListEventsResponse], size: int, after: list[int], lost: list[int]
) -> events_pb2.ListEventsResponse:
    """Return what fits into a page; `after` and `lost` move on."""
    merged, room = events_pb2.ListEventsResponse(), Room(size=size)
    heap = [
        (to_unix_ms(page.events[0].time), shard, 0)
        for shard, page in enumerate(pages)
        if page.events
    ]
    heapq.heapify(heap)
    is_whole = True
    while heap:
        _, shard, place = heap[0]
        page = pages[shard]
        event = page.events[place]
        if not room.take(event.ByteSize()):
            is_whole = False
            break
        heapq.heappop(heap)
        merged.events.append(event)
        after[shard] = event.sequence
        if place + 1 < len(page.events):
            heapq.heappush(heap, (to_unix_ms(page.events[place + 1].time), shard, place + 1))
        elif page.next_page_token:
            is_whole = False  # the next event of this shard may be older than those of the others
            break
    unread = {shard for _, shard, _ in heap}
    for shard, page in enumerate(pages):
        if shard not in unread and not page.next_page_token:
            after[shard] = page.last_sequence  # every kept event was looked at: no more may be lost
            lost[shard] = min(lost[shard], after[shard])
    merged.position = write_position(after)
    if not is_whole:
        merged.next_page_token = f"{write_position(after)}:{write_position(lost)}"
    return merged


async def watch_events(
    parts: ShardCalls,
    route: Route,
    request: events_pb2.WatchEventsRequest,
    context: Context,
    write: Take,
) -> None:
    """Write the events of all shards, until the call ends.

    Raises:
        InvalidMessage: when the request breaks the contract.
        CallRefused: when a shard answers no more, or events are lost.
    """
    to_kinds(request)
    _refuse_number(request.after_sequence)
    has_begin = bool(request.after_position) or request.HasField("after_sequence")
    position = read_position(request.after_position, parts.count, "after_position")
    unknown = set() if has_begin else set(range(parts.count))
    requests = [
        events_pb2.WatchEventsRequest(
            kinds=request.kinds, after_sequence=after if has_begin else None
        )
        for after in position
    ]

    held = events_pb2.WatchEventsResponse()

    async def take(shard: int, answer: events_pb2.WatchEventsResponse) -> None:
        position[shard] = answer.last_sequence
        unknown.discard(shard)
        held.events.extend(answer.events)
        if unknown:  # a client could not continue after this answer
            if held.ByteSize() > PAGE_BYTES_MAX:
                raise CallRefused(no_owner_status(min(unknown)))
            return
        await write(
            shard,
            events_pb2.WatchEventsResponse(events=held.events, position=write_position(position)),
        )
        del held.events[:]

    await parts.watch_all(route, requests, context, take)


def _refuse_number(sequence: int) -> None:
    """Refuse to begin at a number: it is that of one shard.

    Raises:
        CallRefused: when there is one.
    """
    if sequence:
        facts = (("oldest_sequence", 1), ("epoch", 0))
        raise CallRefused(refusal_status(Refusal(RefusalKind.EVENTS_COMPACTED, facts)))
