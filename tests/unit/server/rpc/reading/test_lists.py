"""Lists of jobs, runs and rounds, and a single node."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from rallypoint.server.core.model.job import RUNS_MAX
from rallypoint.v1 import job_pb2, round_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import node_service_pb2 as node_service
from rallypoint.wire.errors import unpack_detail
from support.clients.reading import Reader, run_once
from support.core.served import Served, served

LATEST = service_pb2.JOB_ORDER_LATEST


async def three_jobs(server: Served) -> Reader:
    """Return a reader of a job that has succeeded, and two others that run."""
    await run_once(server, "b-done", 1)
    await server.join("c-runs", 2)
    await server.join("a-runs", 3)
    return Reader(server)


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({}, ["a-runs", "b-done", "c-runs"]),
        ({"order": LATEST}, ["a-runs", "c-runs", "b-done"]),
        ({"job_id_prefix": "b"}, ["b-done"]),
        ({"phases": [job_pb2.JOB_PHASE_RUNNING]}, ["a-runs", "c-runs"]),
        ({"phases": [job_pb2.JOB_PHASE_RUNNING, job_pb2.JOB_PHASE_CLOSED], "order": LATEST},
         ["a-runs", "c-runs", "b-done"]),
        ({"outcomes": [job_pb2.OUTCOME_SUCCEEDED]}, ["b-done"]),
        ({"outcomes": [job_pb2.OUTCOME_OPEN], "job_id_prefix": "a"}, ["a-runs"]),
        ({"outcomes": [job_pb2.OUTCOME_FAILED]}, []),
    ],
)  # fmt: skip
async def test_jobs_are_filtered_and_ordered(fields: dict[str, Any], ids: list[str]) -> None:
    """In one page or in several; each page counts all that match."""
    async with served() as server:
        reader = await three_jobs(server)
        whole = await reader.list(**fields)
        found, token = [], ""
        while True:
            page = await reader.list(page_size=1, page_token=token, **fields)
            assert len(ids) == page.job_count
            found += [job.job_id for job in page.jobs]
            token = page.next_page_token
            if not token:
                break

    assert (ids, ids) == ([job.job_id for job in whole.jobs], found)
    assert (len(ids), "") == (whole.job_count, whole.next_page_token)


async def test_page_is_at_most_a_thousand_jobs_long() -> None:
    """A larger size is no mistake."""
    async with served() as server:
        await server.join("job", 1)

        assert 1 == len((await Reader(server).list(page_size=100_000)).jobs)


async def test_token_of_another_order_is_refused() -> None:
    """The next page would leave jobs out."""
    async with served() as server:
        reader = await three_jobs(server)
        first = await reader.list(page_size=1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reader.list(page_token=first.next_page_token, order=LATEST)

    assert grpc.StatusCode.INVALID_ARGUMENT is caught.value.code()


async def test_earlier_runs_and_their_rounds_stay() -> None:
    """The job shows its latest run; lists show all, the latest first, with times of day."""
    async with served() as server:
        await run_once(server, "job", 1)
        await run_once(server, "job", 2)
        await server.join("job", 3)
        reader = Reader(server)
        job = await reader.get("job")
        runs = (await reader.jobs.ListRuns(service_pb2.ListRunsRequest(job_id="job"))).runs
        rounds = (await reader.jobs.ListRounds(service_pb2.ListRoundsRequest(job_id="job"))).rounds

    open_, closed = job_pb2.OUTCOME_OPEN, job_pb2.OUTCOME_SUCCEEDED
    assert (3, 0) == (job.run, len(job.history))
    assert [(3, 3, open_), (2, 2, closed), (1, 1, closed)] == [
        (run.run, run.round, run.outcome) for run in runs
    ]
    assert [(2, 2), (1, 1)] == [(one.run, one.number) for one in rounds]
    assert {round_pb2.ROUND_REASON_SUCCEEDED} == {one.end_reason for one in rounds}
    assert not runs[0].HasField("closed_at") and runs[1].HasField("closed_at")
    for run, one in zip(runs[1:], rounds, strict=True):
        lasted_ms = run.closed_at.ToMilliseconds() - run.opened_at.ToMilliseconds()
        assert lasted_ms == run.lasted_for.ToMilliseconds()
        assert run.opened_at.ToMilliseconds() <= one.began_at.ToMilliseconds()
        assert one.ended_at.ToMilliseconds() == run.closed_at.ToMilliseconds()


async def test_rounds_of_one_run_in_pages() -> None:
    """A token is valid for the page after it, whatever happens meanwhile."""
    async with served() as server:
        for number in range(1, 4):
            await run_once(server, "job", number)
        jobs, ask = Reader(server).jobs, service_pb2.ListRoundsRequest
        only = await jobs.ListRounds(ask(job_id="job", run=2))
        first = await jobs.ListRounds(ask(job_id="job", page_size=2))
        await run_once(server, "job", 4)
        rest = await jobs.ListRounds(ask(job_id="job", page_token=first.next_page_token))
        runs = await jobs.ListRuns(service_pb2.ListRunsRequest(job_id="job", page_size=3))
        last = await jobs.ListRuns(
            service_pb2.ListRunsRequest(job_id="job", page_token=runs.next_page_token)
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await jobs.ListRounds(ask(job_id="job", page_token="x"))

    assert [2] == [one.number for one in only.rounds]
    assert [3, 2] == [one.number for one in first.rounds]
    assert ([1], "") == ([one.number for one in rest.rounds], rest.next_page_token)
    assert [4, 3, 2, 1] == [run.run for run in (*runs.runs, *last.runs)]
    assert grpc.StatusCode.INVALID_ARGUMENT is caught.value.code()


async def test_only_the_latest_runs_are_remembered() -> None:
    """With that which is open."""
    async with served() as server:
        for number in range(1, RUNS_MAX + 3):
            await run_once(server, "job", number)
        answer = await Reader(server).jobs.ListRuns(service_pb2.ListRunsRequest(job_id="job"))

    assert list(range(RUNS_MAX + 2, 2, -1)) == [run.run for run in answer.runs]


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("ListRuns", service_pb2.ListRunsRequest(job_id="other")),
        ("ListRounds", service_pb2.ListRoundsRequest(job_id="other")),
    ],
)
async def test_runs_and_rounds_of_an_unknown_job(method: str, request_: Any) -> None:
    """NOT_FOUND, with the detail that says which job is meant."""
    async with served() as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(Reader(server).jobs, method)(request_)

    assert grpc.StatusCode.NOT_FOUND is caught.value.code()


async def test_one_node_is_shown_as_in_the_list() -> None:
    """An unknown one is NOT_FOUND; the detail says whether its job is."""
    async with served() as server:
        await server.join("job", 1)
        nodes = Reader(server).nodes
        one = await nodes.GetNode(node_service.GetNodeRequest(job_id="job", node_name="n1"))
        listed = await nodes.ListNodes(node_service.ListNodesRequest(job_id="job"))
        refused = []
        for job_id in ("job", "other"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                request = node_service.GetNodeRequest(job_id=job_id, node_name="n2")
                await nodes.GetNode(request)
            detail = unpack_detail(tuple(caught.value.trailing_metadata()))
            refused.append((caught.value.code(), type(detail).__name__))

    one.node.ClearField("silent_for")
    listed.nodes[0].ClearField("silent_for")
    assert list(listed.nodes) == [one.node]
    not_found = grpc.StatusCode.NOT_FOUND
    assert [(not_found, "UnknownNode"), (not_found, "UnknownJob")] == refused


async def test_departures_say_how_a_node_went() -> None:
    """A node that leaves after the end of its run has finished; the times of its run are known."""
    async with served() as server:
        await run_once(server, "job", 1)
        job = await Reader(server).get("job")

    (departure,) = job.departures
    assert job_pb2.DEPARTURE_KIND_FINISHED == departure.kind
    assert departure.departed_at.ToMilliseconds() >= job.closed_at.ToMilliseconds()
    assert (1_000, 60_000) == (job.heartbeat_interval.ToMilliseconds(), job.lease.ToMilliseconds())
