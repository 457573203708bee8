"""A job that is followed by a thread, so that a view can show time passing between two changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.client.errors import RallypointError, Unavailable
from rallypoint.v1 import job_pb2

if TYPE_CHECKING:
    from rallypoint.client import Client

OUTAGE_S = 2.0
"""How long a call may take before a view says that no coordinator answers."""
AGAIN_S = 1.0
"""Pause before the job is followed again after an outage."""


class Change(Struct, frozen=True):
    """What the thread has found."""

    job: job_pb2.Job | None = None
    """As it is now; None: the run has ended, or there is an error."""
    error: RallypointError | None = None
    """Why the job cannot be followed any more."""


@contextmanager
def follow(
    client: Client, job_id: str, *, view: job_pb2.JobView.ValueType, after: int = 0
) -> Iterator[SimpleQueue[Change]]:
    """Yield the changes of a job until its run has ended; the last one has no job.

    An outage of the coordinator ends nothing.

    Args:
        client: it is closed at the end.
        job_id: the job.
        view: how much of it to read.
        after: revision that the caller has seen; 0: none, so the job comes at once.
    """
    changes = SimpleQueue[Change]()
    is_closed = threading.Event()

    def read() -> None:
        seen = after
        while not is_closed.is_set():
            try:
                with client.watch_job(job_id, view=view, after=seen) as answers:
                    for answer in answers:
                        seen = answer.revision
                        changes.put(Change(answer.job))
                changes.put(Change())
                return
            except Unavailable:
                is_closed.wait(AGAIN_S)
            except RallypointError as error:
                changes.put(Change(error=error))
                return

    thread = threading.Thread(target=read, name="follow", daemon=True)
    thread.start()
    try:
        yield changes
    finally:
        is_closed.set()
        client.close()
        thread.join(OUTAGE_S)
