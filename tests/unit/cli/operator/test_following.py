"""A view that is slower than its job shows the newest state, and the end after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any, cast

import pytest

from rallypoint.cli.operator.reads.following import follow
from rallypoint.client import Client
from rallypoint.client.errors import NotAllowed
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2

LIMIT_S = 20.0
STATES = 500


class Busy:
    """A client whose job changes often, and then ends."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.sent = threading.Event()
        """All states were read."""
        self.ending = threading.Event()

    @contextmanager
    def watch_job(self, *_: Any, **__: Any) -> Iterator[Iterator[jobs_pb2.WatchJobResponse]]:
        yield self._answers()

    def _answers(self) -> Iterator[jobs_pb2.WatchJobResponse]:
        for revision in range(1, STATES + 1):
            job = job_pb2.Job(job_id="j", revision=revision)
            yield jobs_pb2.WatchJobResponse(job=job, revision=revision)
        self.sent.set()
        self.ending.wait(LIMIT_S)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.ending.set()


@pytest.mark.parametrize("error", [None, NotAllowed("not yours")])
def test_slow_view_gets_the_newest_state_and_then_the_end(error: Exception | None) -> None:
    """What came before it is not kept, however many states there were."""
    busy = Busy(error)
    with follow(cast("Client", busy), "j", view=job_pb2.JOB_VIEW_FULL) as changes:
        assert busy.sent.wait(LIMIT_S)
        newest = changes.get(timeout=LIMIT_S)
        assert newest.job is not None
        with pytest.raises(Empty):
            changes.get(timeout=0)
        busy.ending.set()
        end = changes.get(timeout=LIMIT_S)

    assert STATES == newest.job.revision
    assert (None, error) == (end.job, end.error)


def test_end_overtakes_no_state() -> None:
    """The last state of a run is shown also when the run ends before it was looked at."""
    busy = Busy()
    busy.ending.set()
    with follow(cast("Client", busy), "j", view=job_pb2.JOB_VIEW_FULL) as changes:
        seen = [changes.get(timeout=LIMIT_S)]
        while seen[-1].job is not None:
            seen.append(changes.get(timeout=LIMIT_S))

    assert seen[-2].job is not None
    assert STATES == seen[-2].job.revision
