"""A watch of all jobs that ends while its first answer is being sent."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.server.access.usage.stalls import Stalls
from rallypoint.server.fleet import router
from rallypoint.v1 import event_service_pb2, event_service_pb2_grpc
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import job_service_pb2_grpc as jobs_grpc
from support.core.served import LIMIT_S, SPEC
from support.routing.fleet import fleet, jobs_of

JOBS = 400
LONG = "j" * 200
"""Begins ids of jobs, so that the first answer does not fit into the buffers of a connection."""


async def test_watch_ends_while_its_first_answer_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard loses its owner meanwhile: the client learns of it once it has read the answer."""
    is_sending = asyncio.Event()

    class Noting(Stalls):
        def begin(self, scope: asyncio.Timeout, limit_s: float) -> None:
            is_sending.set()
            super().begin(scope, limit_s)

    monkeypatch.setattr(router, "Stalls", Noting)
    async with fleet() as made:
        first = made.members[0]
        jobs: Any = jobs_grpc.JobServiceStub(first.channel)
        for job_id in islice(jobs_of(0, LONG), JOBS):
            request = jobs_pb2.CreateJobRequest(job_id=job_id, spec=SPEC)
            await jobs.CreateJob(request, timeout=LIMIT_S)
        stub: Any = event_service_pb2_grpc.EventServiceStub(first.channel)
        watch = stub.WatchEvents(event_service_pb2.WatchEventsRequest(after_sequence=0))
        async with asyncio.timeout(LIMIT_S):
            await is_sending.wait()
            await made.take(1)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await watch.read() is not grpc.aio.EOF:
                    pass

        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
