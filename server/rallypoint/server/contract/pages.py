"""Pages of lists: bounded by entries and by bytes, and built in slices.

A token names the last entry of its page, not a number of entries. So it stays valid when entries
come and go: the others are neither left out nor shown twice.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.server.contract.pace import SLICE_S, Pace
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import barrier_service_pb2, job_service_pb2, node_service_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

PAGE_MAX = 1_000
"""Entries of a page for which the client chose no size."""
PAGE_BYTES_MAX = 1_024 * 1_024
"""Longest page, without its token. A page with one entry may be longer: a node with 4,096 ended
workers takes 0.3 MB."""
FRAME_BYTES = 4
"""Bytes that a list adds to each entry: its tag and its length."""

_Entry = TypeVar("_Entry", bound=Message)
_Place = TypeVar("_Place")


class Room:
    """What still fits into a list."""

    def __init__(self, *, size: int = sys.maxsize, bytes_max: int | None = None) -> None:
        """Begin with an empty list of at most `size` entries, and so many bytes or those of a page.

        Args:
            size: 1 or more.
            bytes_max: None: `PAGE_BYTES_MAX`.
        """
        self._size = size
        self._left_bytes = PAGE_BYTES_MAX if bytes_max is None else bytes_max
        self._count = 0

    @property
    def left(self) -> int:
        """How many more entries the list may have."""
        return self._size - self._count

    def take(self, size_bytes: int) -> bool:
        """Take the room of an entry; return whether there is any. The first entry always fits."""
        self._left_bytes -= size_bytes + FRAME_BYTES
        if self._count and (self._left_bytes < 0 or not self.left):
            return False
        self._count += 1
        return True


def to_page(
    request: job_service_pb2.ListJobsRequest
    | node_service_pb2.ListNodesRequest
    | job_service_pb2.ListRunsRequest
    | job_service_pb2.ListRoundsRequest
    | barrier_service_pb2.ListBarriersRequest,
) -> tuple[int, str]:
    """Return the size of a page, 1 or more, and the token of the page before, or ""."""
    check(request)
    return request.page_size or PAGE_MAX, request.page_token


def read_token(token: str, pattern: str) -> Sequence[str | Any]:
    """Return the groups of a pattern that a token matches.

    Raises:
        InvalidMessage: when it does not match.
    """
    match = re.fullmatch(pattern, token, re.ASCII | re.DOTALL)
    if match is None:
        raise InvalidMessage("page_token", "is not the token of a page")
    return match.groups()


async def fill_page(
    pace: Pace,
    entries: RepeatedCompositeFieldContainer[_Entry],
    rows: Iterable[tuple[str, Callable[[], _Entry]]],
    size: int,
) -> str:
    """Fill a page with the rows that fit; return the next page's token, or "".

    Args:
        pace: this reader's and all others'.
        entries: of the page; empty.
        rows: those from the beginning of the page on: the token of the page after a row, and what
            returns its entry.
        size: most entries, 1 or more.
    """
    token = ""

    def fill() -> Iterator[None]:
        nonlocal token
        room, last = Room(size=size), ""
        for place, show in rows:
            entry = show()
            if not room.take(entry.ByteSize()):
                token = last
                return
            entries.append(entry)
            last = place
            yield

    await pace.drive(fill())
    return token


async def read_page(
    coordinator: Coordinator,
    entries: RepeatedCompositeFieldContainer[_Entry],
    places: Sequence[_Place],
    show: Callable[[_Place, State, int], _Entry | None],
    size: int,
) -> _Place | None:
    """Fill a page in several turns; return the place that the next page begins after, if any.

    Args:
        coordinator: each turn shows what is in its journal then.
        entries: of the page; empty.
        places: from the beginning of the page on.
        show: returns the entry of a place; None when it is gone.
        size: most entries, 1 or more.
    """
    room, taken, last = Room(size=size), 0, None

    def take_slice(state: State, now_ms: int) -> list[tuple[_Place, _Entry | None]]:
        """Return the next entries that a slice has time for, at least one."""
        ends_s, part = time.monotonic() + SLICE_S, []
        for place in places[taken : taken + room.left]:
            part.append((place, show(place, state, now_ms)))
            if time.monotonic() >= ends_s:
                break
        return part

    while taken < len(places):
        if not room.left:
            return last
        part = await coordinator.read(take_slice)
        taken += len(part)
        for place, entry in part:
            if entry is not None:
                if not room.take(entry.ByteSize()):
                    return last
                entries.append(entry)
                last = place
    return None
