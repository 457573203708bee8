"""What handlers of calls share: the context, the exceptions that end a call, and how long it waits.

A handler raises what refuses its call. The interceptor turns that into the call's status.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.server.core.messages.refusals import Limit, unknown_job
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import InputRefused

Context = grpc.aio.ServicerContext[Any, Any]
MARGIN_MS_MAX = 3_000
"""A wait ends so much earlier than its call at most, so that the answer arrives in time."""
MARGIN_MS_MIN = 250
"""A turn may come that late without counting as a stall."""
MARGIN_PART = 10
"""Or one part in so many of the time that the call has left."""


class CallRefused(Exception):
    """The call ends with this status."""

    def __init__(self, status: Status, *, is_forwarded: bool = False) -> None:
        """Keep the status; another coordinator may have ended a forwarded call with it."""
        super().__init__(status.message)
        self.status = status
        self.is_forwarded = is_forwarded


class LimitExceeded(Exception):
    """A limit is reached."""

    def __init__(self, limit: Limit, value: int, retry_s: float | None = None) -> None:
        """Keep what the refusal says.

        Args:
            limit: the limit.
            value: its value.
            retry_s: when another attempt may succeed; None: probably not soon.
        """
        super().__init__(f"{value} {limit.value}")
        self.limit = limit
        self.value = value
        self.retry_s = retry_s


def find_job(state: State, job_id: JobId) -> Job:
    """Return a job.

    Raises:
        InputRefused: when there is no such job.
    """
    job = state.jobs.get(job_id)
    if job is None:
        raise InputRefused(unknown_job(job_id))
    return job


class InvalidMessage(Exception):
    """A message breaks the contract."""

    def __init__(self, path: str, problem: str) -> None:
        """Name the field, and what is wrong with it."""
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


def require(holds: bool, path: str, problem: str) -> None:
    """Refuse the message unless `holds`.

    Raises:
        InvalidMessage: when it does not.
    """
    if not holds:
        raise InvalidMessage(path, problem)


async def is_set_within(event: asyncio.Event, limit_s: float | None) -> bool:
    """Wait for an event; return whether it was set within so many seconds; None: no limit."""
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def limit_wait_ms(wanted_ms: int, left_s: float | None) -> int:
    """Return how long a call waits here, in ms, 1 or more: always less than its caller does.

    Args:
        wanted_ms: what the caller asks for.
        left_s: seconds until the deadline of the call; None without one.
    """
    if left_s is None:
        return max(1, wanted_ms)
    left_ms = int(left_s * 1000)
    most_ms = left_ms - min(MARGIN_MS_MAX, max(MARGIN_MS_MIN, left_ms // MARGIN_PART))
    return max(1, min(wanted_ms, max(most_ms, left_ms // 2)))


class Source(Protocol):
    """The state or a listener, at the last turn in the journal: where an answer comes from."""

    @property
    def epoch(self) -> int:
        """Of the coordinator."""

    @property
    def durable(self) -> bool:
        """Whether its journal is."""
