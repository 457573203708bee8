"""A job that is followed by a thread, so that a view can show time passing between two changes.

The thread reads every state, and keeps only the newest for a view that is slower.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
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


class Changes:
    """The newest state of a job, until it was taken, and how following it has ended.

    One thread puts, one gets.
    """

    def __init__(self) -> None:
        """Begin without a state."""
        self._changed = threading.Condition()
        self._newest: Change | None = None
        self._end: Change | None = None
        self.is_away = False
        """No coordinator answers now."""

    def put(self, change: Change) -> None:
        """Replace the state that was not taken yet; the end comes after the last state."""
        with self._changed:
            if change.job is None:
                self._end = change
            else:
                self._newest = change
            self._changed.notify()

    def get(self, timeout: float | None = None) -> Change:
        """Take the newest state, or the end after it; wait for either.

        Args:
            timeout: how long to wait, in s; None: without a limit, for the coordinator ends it.

        Raises:
            Empty: when nothing has changed in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._newest or self._end, timeout):
                raise Empty
            taken, self._newest = self._newest or self._end, None
            assert taken is not None
            return taken


@contextmanager
def follow(
    client: Client, job_id: str, *, view: job_pb2.JobView.ValueType, after: int = 0
) -> Iterator[Changes]:
    """Yield the changes of a job until its run has ended; the last one has no job.

    States that come while the caller is busy are merged: it gets the newest.

    An outage of the coordinator ends nothing.

    Args:
        client: it is closed at the end.
        job_id: the job.
        view: how much of it to read.
        after: revision that the caller has seen; 0: none, so the job comes at once.
    """
    changes = Changes()
    is_closed = threading.Event()

    def read() -> None:
        seen = after
        while not is_closed.is_set():
            try:
                with client.watch_job(job_id, view=view, after=seen) as answers:
                    for answer in answers:
                        changes.is_away = False
                        seen = answer.revision
                        changes.put(Change(answer.job))
                changes.put(Change())
                return
            except Unavailable:
                changes.is_away = True
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
