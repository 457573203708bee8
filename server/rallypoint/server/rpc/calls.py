"""What handlers of calls share: the context, and the exceptions that end a call.

A handler raises what refuses its call. The interceptor turns that into the call's status.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.server.coordinator import InputRefused
from rallypoint.server.core.messages.refusals import Limit, Refusal, RefusalKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.state.state import State

Context = grpc.aio.ServicerContext[Any, Any]


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


def unknown_job(job_id: JobId) -> Refusal:
    """Return the refusal of a call about a job that does not exist."""
    return Refusal(RefusalKind.UNKNOWN_JOB, (("job_id", job_id),))


def find_job(state: State, job_id: JobId) -> Job:
    """Return a job.

    Raises:
        InputRefused: when there is no such job.
    """
    job = state.jobs.get(job_id)
    if job is None:
        raise InputRefused(unknown_job(job_id))
    return job
