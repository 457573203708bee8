"""Watches of one job: from a revision on, over several runs, and while there is no job."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from rallypoint.server.core.model.spec import Timing
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from support.clients.reading import Reader, Watch, run_once, succeed
from support.core.served import LIMIT_S, served

SUMMARY = job_pb2.JOB_VIEW_SUMMARY


async def read_until_closed(watch: Watch) -> list[int]:
    """Return the revisions up to the end of a run that every node knows."""
    revisions: list[int] = []
    while True:
        answer = await watch.next()
        revisions.append(answer.revision)
        summary = answer.summary
        if summary.phase == job_pb2.JOB_PHASE_CLOSED and not summary.node_count:
            return revisions


async def test_watch_begins_after_the_revision_that_is_known() -> None:
    """What was seen is not sent again; without a revision it is sent at once."""
    async with served() as server:
        await server.join("job", 1)
        reader = Reader(server)
        known = (await reader.get("job")).revision
        async with (
            reader.watch("job", view=SUMMARY) as first,
            reader.watch("job", view=SUMMARY, after_revision=known) as later,
            reader.watch("job", view=SUMMARY, after_revision=known - 1) as late,
        ):
            assert known == (await first.next()).revision == (await late.next()).revision
            await reader.change("job")
            answers = [await watch.next() for watch in (first, later, late)]

    assert len({answer.revision for answer in answers}) == 1
    assert answers[0].revision == answers[0].summary.revision > known


async def test_watch_after_a_revision_that_is_ahead_begins_at_once() -> None:
    """It is one of a coordinator whose clock was ahead: nothing here would ever be newer."""
    async with served() as server:
        await server.join("job", 1)
        reader = Reader(server)
        known = (await reader.get("job")).revision
        async with reader.watch("job", after_revision=known + 10**9) as watch:
            assert known == (await watch.next()).revision


async def test_watch_across_runs_misses_nothing() -> None:
    """A job that comes, ends, runs again, and is deleted: each revision comes once, ascending."""
    async with served() as server:
        reader = Reader(server)
        async with reader.watch("job", view=SUMMARY, across_runs=True) as watch:
            before = await watch.next()
            agent = await server.join("job", 1)
            await succeed(agent)
            first = await read_until_closed(watch)
            await run_once(server, "job", 2)
            second = await read_until_closed(watch)
            await reader.delete("job")
            after = await watch.next()
            await server.join("job", 3)
            again = await watch.next()

    assert before.missing and after.missing and not after.HasField("summary")
    assert (3, False) == (again.summary.run, again.missing)  # no number is used again
    seen = [before.revision, *first, *second, after.revision, again.revision]
    assert seen == sorted(set(seen))


async def test_watch_of_one_run_ends_with_it() -> None:
    """Also when its end is all that the client has seen."""
    async with served() as server:
        await run_once(server, "job", 1)
        reader = Reader(server)
        known = (await reader.get("job")).revision
        async with reader.watch("job") as watch, reader.watch("job", after_revision=known) as late:
            assert known == (await watch.next()).revision

            assert await watch.next() is grpc.aio.EOF
            assert await late.next() is grpc.aio.EOF


async def test_watch_of_one_run_does_not_follow_the_next() -> None:
    """Also when the end of the run was merged with the beginning of the next one."""
    async with served() as server:
        reader = Reader(server)
        spec = job_pb2.JobSpec(min_nodes=1, max_nodes=1)
        await reader.jobs.CreateJob(service_pb2.CreateJobRequest(job_id="job", spec=spec))
        async with reader.watch("job", view=SUMMARY) as watch:
            runs = [(await watch.next()).summary.run]
            await reader.jobs.CancelJob(service_pb2.CancelJobRequest(job_id="job"))
            await reader.jobs.CreateJob(service_pb2.CreateJobRequest(job_id="job", spec=spec))
            while (answer := await watch.next()) is not grpc.aio.EOF:
                runs.append(answer.summary.run)

    assert {1} == set(runs)


async def test_deletion_that_is_known_is_not_sent_again() -> None:
    """A client that was away meanwhile learns of it."""
    async with served() as server:
        await run_once(server, "job", 1)
        reader = Reader(server)
        seen = (await reader.get("job")).revision
        await reader.delete("job")
        async with reader.watch("job", across_runs=True, after_revision=seen) as watch:
            gone = await watch.next()
        async with reader.watch("job", across_runs=True, after_revision=gone.revision) as watch:
            await server.join("job", 2)
            back = await watch.next()

    assert gone.missing and gone.revision == seen + 1
    assert back.job.run == 2 and not back.missing


async def test_new_coordinator_calls_no_job_missing_before_it_has_listened() -> None:
    """The agents of its jobs need a moment to find it."""
    window_ms = 300
    async with served(Timing(window_ms=window_ms)) as server:
        began_s = time.monotonic()
        async with (
            asyncio.timeout(LIMIT_S),
            Reader(server).watch("job", across_runs=True) as watch,
        ):
            answer = await watch.next()

    assert answer.missing
    assert time.monotonic() - began_s >= 0.6 * window_ms / 1000


@pytest.mark.parametrize("after", [0, 1])
async def test_watch_of_one_run_needs_a_job(after: int) -> None:
    """As before: NOT_FOUND."""
    async with served() as server, Reader(server).watch("job", after_revision=after) as watch:
        assert grpc.StatusCode.NOT_FOUND is (await watch.ending()).code()
