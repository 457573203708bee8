"""Pages of open barriers, by scope and name."""

from __future__ import annotations

import time
from bisect import bisect_right
from functools import partial

from rallypoint.server.coordinator import Coordinator
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.barriers.views import barrier_message
from rallypoint.server.rpc.calls import find_job
from rallypoint.server.rpc.convert.checks import require
from rallypoint.server.rpc.reading.pace import SLICE_S, Pace
from rallypoint.server.rpc.reading.pages import FRAME_BYTES_MAX, PAGE_BYTES_MAX
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2

_Place = tuple[int, str]
"""Round and name; round 0 for barriers of the run, which come first."""
_START: _Place = (-1, "")


async def read_barriers(
    coordinator: Coordinator, pace: Pace, job_id: JobId, size: int, token: str
) -> barrier_pb2.ListBarriersResponse:
    """Return a page of the open barriers of a job.

    Args:
        coordinator: read in several turns; each shows what is in the journal then.
        pace: this reader's and all others'.
        job_id: the job.
        size: most barriers, 1 or more.
        token: of the page before; empty for the first page.

    Raises:
        InvalidMessage: when the token is none.
        InputRefused: when there is no such job.
    """
    page, left, after = barrier_pb2.ListBarriersResponse(), PAGE_BYTES_MAX, read_token(token)
    async with pace.turn():
        while True:
            wanted = size - len(page.barriers)
            part, has_more = await coordinator.read(partial(_take_slice, job_id, after, wanted))
            for barrier in part:
                left -= barrier.ByteSize() + FRAME_BYTES_MAX
                if left < 0 and page.barriers:
                    page.next_page_token = _token(after)
                    return page
                page.barriers.append(barrier)
                after = (barrier.round, barrier.name)
            if not has_more:
                return page
            if len(page.barriers) >= size:
                page.next_page_token = _token(after)
                return page


def _take_slice(
    job_id: JobId, after: _Place, wanted: int, state: State, now_ms: int
) -> tuple[list[barrier_pb2.Barrier], bool]:
    """Return the next barriers that a slice has time for, at least one, and whether more follow."""
    job = find_job(state, job_id)
    opened = {
        (key.round, key.name): barrier
        for key, barrier in state.barriers.get(job_id, {}).items()
        if barrier.is_open
    }
    places = sorted(opened)
    begin, ends_s = bisect_right(places, after), time.monotonic() + SLICE_S
    part: list[barrier_pb2.Barrier] = []
    for place in places[begin : begin + wanted]:
        barrier = opened[place]
        part.append(barrier_message(barrier, state.arrivals[barrier.key], job, now_ms))
        if time.monotonic() >= ends_s:
            break
    return part, begin + len(part) < len(places)


def _token(place: _Place) -> str:
    return f"{place[0]}:{place[1]}"


def read_token(token: str) -> tuple[int, str]:
    """Return the round and the name of the last barrier before a page.

    Raises:
        InvalidMessage: when it is no token.
    """
    if not token:
        return _START
    round, colon, name = token.partition(":")
    is_token = bool(colon) and round.isascii() and round.isdigit() and len(round) <= 16
    require(is_token, "page_token", "is not the token of a page")
    return int(round), name
