"""Many jobs and large jobs are readable: pages, views, and no message that is too long to send."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from rallypoint.server.api.jobs import lists
from rallypoint.server.api.jobs.job import summary_message
from rallypoint.server.api.jobs.lists import JobList
from rallypoint.server.api.jobs.picture import fill, job_message, take_picture
from rallypoint.server.api.jobs.rows import list_nodes as rows_of
from rallypoint.server.contract import pages
from rallypoint.server.contract.pace import SLICE_S, Pace
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.job import HISTORY_MAX, Job, NodeHealth
from rallypoint.server.core.model.node import Program
from rallypoint.server.core.model.round import Departure, RoundReason, RoundSummary
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Verdict, VerdictCause
from rallypoint.server.core.model.worker import ErrorRecord, FailedWorker, WorkerExit
from rallypoint.server.core.reads.explain import explain
from rallypoint.server.core.state.state import State
from rallypoint.server.core.verdicts.health import HEALTH_MAX, REASON_CHARS_MAX
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.v1 import node_service_pb2 as node_service
from rallypoint.v1 import node_service_pb2_grpc as node_grpc
from rallypoint.wire.channel import MESSAGE_BYTES_MAX
from support.core.coordinator import Bench
from support.core.fake_agents import worker_exit
from support.core.served import Served, served
from support.core.shell import Shell, running_shell

WIDE = "\U0001f525"
"""A character of four bytes."""
LONG_NAME = "n" * 240


@asynccontextmanager
async def remembering(count: int) -> AsyncIterator[Shell]:
    """Run a coordinator that knows this many failed jobs, each with a long traceback."""
    failed = WorkerExit(
        local_rank=0,
        pid=1,
        exit_code=1,
        signal=None,
        agent_signalled_first=False,
        error=ErrorRecord(WIDE * 4_096, WIDE * 16_384),
        stderr_tail=WIDE * 4_096,
    )
    culprit = FailedWorker(NodeName("a"), 0, failed)
    text = f"rank 0 on node a failed: {WIDE * 300}\nand more"
    verdict = Verdict(VerdictCause.WORKER_FAILED, 1, NodeName("a"), text, culprit=culprit)
    async with running_shell() as shell:
        for number in range(count):
            job_id = JobId(f"job-{number:05}")
            shell.state.jobs[job_id] = Job(job_id, 1, JobSpec(), 0, verdict=verdict)
        yield shell


async def read_all(shell: Shell, size: int) -> list[service_pb2.ListJobsResponse]:
    """Return all pages of jobs."""
    found = [await lists.read_jobs(shell.coordinator, Pace(), JobList(), size, "", explain)]
    while found[-1].next_page_token:
        token = found[-1].next_page_token
        found.append(
            await lists.read_jobs(shell.coordinator, Pace(), JobList(), size, token, explain)
        )
    return found


async def test_all_jobs_are_listed_in_pages_of_bounded_size() -> None:
    """Their tracebacks are not part of the list; every text is one short line."""
    async with remembering(4_096) as shell:
        found = await read_all(shell, 1_000)

    listed = [job for page in found for job in page.jobs]
    assert [f"job-{number:05}" for number in range(4_096)] == [job.job_id for job in listed]
    assert max(page.ByteSize() for page in found) <= pages.PAGE_BYTES_MAX
    assert {256} == {len(job.verdict) for job in listed}
    assert not [job for job in listed if "\n" in job.verdict]


@pytest.mark.parametrize(("size", "bytes_max", "count"), [(3, 10**6, 4), (100, 2_600, 5)])
async def test_page_ends_at_the_first_limit(
    monkeypatch: pytest.MonkeyPatch, size: int, bytes_max: int, count: int
) -> None:
    """Of entries or of bytes. A page has at least one job."""
    monkeypatch.setattr(pages, "PAGE_BYTES_MAX", bytes_max)
    async with remembering(10) as shell:
        found = await read_all(shell, size)
        monkeypatch.setattr(pages, "PAGE_BYTES_MAX", 1)
        single = await read_all(shell, size)

    assert (count, 10) == (len(found), len(single))
    assert all(page.ByteSize() <= bytes_max for page in found)
    assert 10 == len({job.job_id for page in found for job in page.jobs})


async def test_jobs_that_come_and_go_move_no_other() -> None:
    """A token stays valid when its own job is gone."""
    async with remembering(6) as shell:
        first = await lists.read_jobs(shell.coordinator, Pace(), JobList(), 2, "", explain)
        for job_id in ("job-00000", "job-00001"):
            del shell.state.jobs[JobId(job_id)]
        early = JobId("early")
        shell.state.jobs[early] = Job(early, 1, JobSpec(), 0)
        rest = await lists.read_jobs(
            shell.coordinator, Pace(), JobList(), 10, first.next_page_token, explain
        )

    assert [f"job-{number:05}" for number in range(2, 6)] == [job.job_id for job in rest.jobs]


def test_summary_shows_the_main_facts() -> None:
    """Of a job that runs, and of one that waits."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2, max_restarts=3, restart_backoff_ms=0))
    a, _ = bench.run_round("a", "b", workers=4)
    bench.advance(1_000)
    runs = summary_message(bench.state, bench.job(), bench.now_ms)
    a.fail(worker_exit(7))
    stops = summary_message(bench.state, bench.job(), bench.now_ms)

    assert ("job", 1, job_pb2.JOB_PHASE_RUNNING, 2, 8, 1, 0, 3) == (
        *(runs.job_id, runs.run, runs.phase, runs.node_count, runs.world_size),
        *(runs.round, runs.restart_count, runs.max_restarts),
    )
    assert (1_000, "", "") == (runs.age.ToMilliseconds(), runs.waiting, runs.verdict)
    assert "2 of 2 nodes still to stop" in stops.waiting
    assert "exit code 7" in stops.verdict


def large_job(nodes: int, workers: int, name: str = "") -> tuple[State, Job]:
    """Return a state with a job of so many nodes, which are not really connected."""
    bench = Bench(JobSpec(min_nodes=1, max_nodes=16_384))
    (agent,) = bench.run_round("a", workers=workers)
    state, job, sample = bench.state, bench.job(), agent.known_node
    assert job.round is not None
    for number in range(1, nodes):
        session = SessionId(f"{2**64 + number:032x}")
        node = replace(
            sample,
            name=NodeName(f"{name}{number}"),
            arrival=number,
            pids=tuple(range(1, workers + 1)),
            identity=replace(sample.identity, session=session),
        )
        state.nodes[session] = node
        state.sessions[job.job_id][session] = None
    tally = state.tallies[job.job_id]
    state.tallies[job.job_id] = tally._replace(nodes=nodes)
    return state, job


def read_nodes(state: State, job: Job, size: int) -> Iterator[node_service.ListNodesResponse]:
    """Yield all pages of nodes."""
    token = ""
    while True:
        page = node_service.ListNodesResponse()
        rows = rows_of(state, job, token, 0)
        page.next_page_token = asyncio.run(pages.fill_page(Pace(), page.nodes, rows, size))
        yield page
        token = page.next_page_token
        if not token:
            return


def test_large_job_is_readable_by_pages() -> None:
    """Each node once, in order of arrival, with all its workers; the whole job counts them."""
    state, job = large_job(3_000, 8)
    found = list(read_nodes(state, job, 1_000))
    message = job_message(state, job, 0)

    names = [node.name for page in found for node in page.nodes]
    assert ["a", *(str(number) for number in range(1, 3_000))] == names
    assert {8} == {len(node.workers) for page in found for node in page.nodes}
    assert 3_000 == message.node_count
    assert max(page.ByteSize() for page in found) <= pages.PAGE_BYTES_MAX


def test_page_of_nodes_is_bounded_by_bytes() -> None:
    """Nodes with 4,096 workers are a few on a page."""
    state, job = large_job(30, 4_096)
    found = list(read_nodes(state, job, 1_000))

    assert 30 == sum(len(page.nodes) for page in found)
    assert 2 <= len(found) < 30
    assert max(page.ByteSize() for page in found) <= pages.PAGE_BYTES_MAX


def test_whole_job_ends_where_it_does_not_fit() -> None:
    """It shows the first nodes, and how many there are, instead of an error."""
    state, job = large_job(60, 4_096)
    message = job_message(state, job, 0)

    assert 0 < len(message.nodes) < 60 == message.node_count
    assert message.ByteSize() < MESSAGE_BYTES_MAX


def test_longest_job_fits_into_a_message() -> None:
    """With every text at its limit, and everything that is counted at its highest number."""
    state, job = large_job(16_384, 8, LONG_NAME)
    failed = worker_exit(1, said=WIDE * 4_096)
    failed = replace(
        failed, error=ErrorRecord(WIDE * 4_096, WIDE * 16_384), stderr_tail=WIDE * 4_096
    )
    worker = FailedWorker(NodeName(LONG_NAME), 0, failed, host=WIDE * 253, command=WIDE * 1_024)
    verdict = Verdict(
        VerdictCause.WORKER_FAILED,
        1,
        NodeName(LONG_NAME),
        WIDE * 1_024,
        culprit=worker,
        collateral=(worker,) * 16,
        evidence=WIDE * 1_024,
    )
    assert job.round is not None
    member = replace(job.round.members[0], name=NodeName(LONG_NAME))
    departure = Departure(NodeName(LONG_NAME), 0, RoundReason.NODE_LEFT, WIDE * 1_024)
    past = RoundSummary(
        run=job.run,
        number=1,
        began=RoundReason.FIRST,
        ended=RoundReason.WORKER_FAILED,
        names=(NodeName(LONG_NAME),) * 64,
        group_world_size=16_384,
        world_size=1,
        restart_count=0,
        started_after_ms=0,
        lasted_ms=0,
        recovered_after_ms=0,
        began_ms=0,
        ended_ms=0,
        verdict=verdict.without_output(),
        stop_note=WIDE * 1_024,
    )
    job = replace(
        job,
        verdict=verdict,
        lost=(departure,) * 16,
        history=tuple(replace(past, number=number) for number in range(1, HISTORY_MAX + 1)),
        health=tuple(
            NodeHealth(NodeName(f"{LONG_NAME}{i}"), cordoned=True, reason=WIDE * REASON_CHARS_MAX)
            for i in range(HEALTH_MAX)
        ),
        round=replace(job.round, members=(member,) * 16_384),
    )
    for number, (session, node) in enumerate(list(state.nodes.items())[:16]):
        program = Program(WIDE * 255, f"{number}", WIDE * 4_096, WIDE * 255)
        state.nodes[session] = replace(node, identity=replace(node.identity, program=program))
    message = job_message(state, job, 0)

    assert message.ByteSize() < MESSAGE_BYTES_MAX - 64 * 1_024
    assert HISTORY_MAX == message.history[-1].number
    assert [one.number for one in message.history] == sorted(one.number for one in message.history)
    assert (HEALTH_MAX, 16_384, 16) == (
        message.health_count,
        message.node_count,
        message.command_count,
    )
    assert 1_000 < len(message.nodes)


@pytest.mark.parametrize("with_nodes", [True, False])
def test_steps_of_a_large_answer_are_short(with_nodes: bool) -> None:
    """None is longer than a slice may be. What a busy machine adds strikes each run elsewhere."""
    state, job = large_job(2_000, 8)
    runs: list[list[float]] = []
    gc.disable()  # a collection looks at what all tests have left
    try:
        for _ in range(5):
            picture, times = take_picture(state, job, 0), [time.thread_time()]
            times += [time.thread_time() for _ in fill(picture, with_nodes=with_nodes)]
            runs.append([after - before for before, after in pairwise(times)])
    finally:
        gc.enable()

    assert max(map(min, zip(*runs, strict=True))) < 4 * SLICE_S


async def test_others_run_while_an_answer_is_built() -> None:
    """Whatever arrives waits for a slice, not for the whole answer, however many readers ask."""
    turns, ended = 0, []

    def work(steps: int) -> Iterator[None]:
        until_s = time.monotonic()
        for _ in range(steps):
            until_s = max(until_s, time.monotonic()) + SLICE_S
            while time.monotonic() < until_s:
                pass
            yield
        ended.append(turns)

    async def count_turns() -> None:
        nonlocal turns
        while len(ended) < 2:
            turns += 1
            await asyncio.sleep(0)

    pace = Pace()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(pace.drive(work(10)))
        tasks.create_task(count_turns())

    assert 9 <= ended[0] <= ended[1] - 9


async def test_what_arrives_waits_for_one_slice() -> None:
    """A message takes several turns of the loop: it does not wait for a slice in each of them."""
    slices = 0

    def work() -> Iterator[None]:
        nonlocal slices
        for _ in range(10):
            slices += 1
            until_s = time.monotonic() + SLICE_S
            while time.monotonic() < until_s:
                pass
            yield

    async def exchange() -> int:
        begun = slices
        for _ in range(8):
            await asyncio.sleep(0)
        return slices - begun

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Pace().drive(work()))
        exchanged = tasks.create_task(exchange())

    assert exchanged.result() <= 1


async def test_views_show_more_and_more() -> None:
    """A summary, a job without its nodes, and the whole job, once and watched."""
    async with served() as server:
        await server.join("job", 1)
        stub = service_grpc.JobServiceStub(server.channel)
        views = (
            *(job_pb2.JOB_VIEW_SUMMARY, job_pb2.JOB_VIEW_BASIC),
            *(job_pb2.JOB_VIEW_FULL, job_pb2.JOB_VIEW_UNSPECIFIED),
        )
        got: list[Any] = []
        watched: list[Any] = []
        for view in views:
            got.append(await stub.GetJob(service_pb2.GetJobRequest(job_id="job", view=view)))
            call = stub.WatchJob(service_pb2.WatchJobRequest(job_id="job", view=view))
            watched.append(await call.read())
            call.cancel()

    for answers in (got, watched):
        summary, basic, full, default = answers
        assert [True, False, False, False] == [one.HasField("summary") for one in answers]
        assert [False, True, True, True] == [one.HasField("job") for one in answers]
        assert ("job", 1) == (summary.summary.job_id, summary.summary.node_count)
        assert (1, 0, 0) == (
            basic.job.node_count,
            len(basic.job.nodes),
            len(basic.job.round.members),
        )
        assert (1, 1) == (len(full.job.nodes), len(full.job.round.members))
        assert 1 == len(default.job.nodes)


async def test_nodes_are_listed_page_by_page() -> None:
    """Nodes that come and go move no other; tokens of another run, or of none, are refused."""
    async with served() as server:
        for number in (1, 2, 3):
            await server.agent("job", number).hello(spec=job_pb2.JobSpec(min_nodes=9, max_nodes=9))
            await server.agents[-1].read()
        first = await list_nodes(server, page_size=2)
        await server.agents[0].report(goodbye={})
        await server.agents[0].ending()
        second = await list_nodes(server, page_size=2, page_token=first.next_page_token)
        problems = []
        for token in ("2:1", "x"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await list_nodes(server, page_token=token)
            assert grpc.StatusCode.INVALID_ARGUMENT is caught.value.code()
            problems.append(caught.value.details())
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await list_nodes(server, job_id="other")

    assert (["n1", "n2"], 3) == ([node.name for node in first.nodes], first.node_count)
    assert (["n3"], 2, "") == (
        [node.name for node in second.nodes],
        second.node_count,
        second.next_page_token,
    )
    assert [
        "page_token: is not of run 1: read the first page again",
        "page_token: is not the token of a page",
    ] == problems
    assert grpc.StatusCode.NOT_FOUND is unknown.value.code()


async def list_nodes(
    server: Served, job_id: str = "job", page_size: int = 0, page_token: str = ""
) -> node_service.ListNodesResponse:
    """Return a page of nodes."""
    request = node_service.ListNodesRequest(
        job_id=job_id, page_size=page_size, page_token=page_token
    )
    stub = node_grpc.NodeServiceStub(server.channel)
    answer: node_service.ListNodesResponse = await stub.ListNodes(request)
    return answer
