"""Pages of what a job remembers: its runs, and its rounds that have ended. The latest come first.

A token is the number of the last entry of its page. Numbers only grow, so it stays valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from rallypoint.server.core.model.job import Job
from rallypoint.server.rpc.convert.checks import require
from rallypoint.server.rpc.reading.pace import Pace
from rallypoint.server.rpc.reading.pages import FRAME_BYTES_MAX, PAGE_BYTES_MAX
from rallypoint.server.rpc.views.job import (
    latest_run_message,
    past_round_message,
    past_run_message,
)
from rallypoint.v1 import job_service_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

_Entry = TypeVar("_Entry", bound=Message)
_TOKEN = re.compile(r"\d{1,16}", re.ASCII)


def read_token(token: str) -> int | None:
    """Return the number that the entries of a page are below; None for the first page.

    Raises:
        InvalidMessage: when it is no token.
    """
    require(not token or bool(_TOKEN.fullmatch(token)), "page_token", "is not the token of a page")
    return int(token) if token else None


async def show_runs(
    job: Job, pace: Pace, size: int, below: int | None, now_ms: int
) -> job_service_pb2.ListRunsResponse:
    """Return a page of the runs of a job.

    Args:
        job: as it was at `now_ms`.
        pace: this reader's and all others'.
        size: most runs, 1 or more.
        below: where the page begins; None for the first one.
        now_ms: journal time.
    """
    page = job_service_pb2.ListRunsResponse()
    runs = [(job.run, partial(latest_run_message, job, now_ms))]
    runs += [(run.run, partial(past_run_message, run, now_ms)) for run in reversed(job.runs)]
    page.next_page_token = await _fill(pace, page.runs, runs, size, below)
    return page


async def show_rounds(
    job: Job, pace: Pace, run: int, size: int, below: int | None, now_ms: int
) -> job_service_pb2.ListRoundsResponse:
    """Return a page of the ended rounds of a job; `run` 0: of all its runs."""
    page = job_service_pb2.ListRoundsResponse()
    rounds = [
        (one.number, partial(past_round_message, one, now_ms))
        for one in reversed(job.history)
        if run in (0, one.run)
    ]
    page.next_page_token = await _fill(pace, page.rounds, rounds, size, below)
    return page


async def _fill(
    pace: Pace,
    page: RepeatedCompositeFieldContainer[_Entry],
    entries: Iterable[tuple[int, Callable[[], _Entry]]],
    size: int,
    below: int | None,
) -> str:
    """Fill a page with what fits of the entries below a number; return the next page's token."""
    last, token = 0, ""

    def fill() -> Iterator[None]:
        nonlocal last, token
        left = PAGE_BYTES_MAX
        for number, show in entries:
            if below is not None and number >= below:
                continue
            entry = show()
            left -= entry.ByteSize() + FRAME_BYTES_MAX
            if len(page) == size or (left < 0 and last):
                token = str(last)
                return
            page.append(entry)
            last = number
            yield

    await pace.drive(fill())
    return token
