"""What readers cost: rounds with an audience, thousands of jobs listed, a huge job read by pages.

Simulated agents (real gRPC streams, in this process) and a real coordinator process, whose limits
per host are lifted, because the whole audience is on one host. A node of another job beats all the
time; its slowest answer shows how long anything held up the coordinator.

    python benchmarks/command/readers.py
    python benchmarks/command/readers.py --only rounds --repeats 20
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from harness.program import Wrong, make_parser, run
from harness.results import Results
from harness.swarm import (
    LARGE_LIMIT_S,
    Gathering,
    SimulatedAgent,
    living,
    open_channel,
    running_job,
)
from harness.witness import BEAT_S, Witness, witness
from nodes.forming import PAUSE_S, Server, coordinator, server
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.v1 import node_service_pb2 as node_service
from rallypoint.v1 import node_service_pb2_grpc as node_grpc

TABLE, ANSWERS = "readers", "large answers"
LATE = "slowest heartbeat of another job"
AUDIENCE = Path(__file__).parents[1] / "harness" / "audience.py"
TRACEBACK = "\N{FIRE}" * 16_384
"""64 KiB: the longest that an agent may report."""
ENDING_AT_ONCE = 32
"""Jobs that fail at the same time."""
AUDIENCES = {
    "alone": (0, "reads"),
    "50 watchers that read": (50, "reads"),
    "500 watchers that never read": (500, "deaf"),
}


@asynccontextmanager
async def observed() -> AsyncIterator[tuple[Server, Witness]]:
    """Run a coordinator without limits per host, and a witness that beats."""
    async with server(*coordinator(kind="lifted")) as one, witness(one.target) as beats:
        yield one, beats


@asynccontextmanager
async def audience(target: str, job_id: str, count: int, kind: str) -> AsyncIterator[None]:
    """Let so many watchers watch a job, from another process, while the context is open."""
    if not count:
        yield
        return
    process = await asyncio.create_subprocess_exec(
        *("nice", sys.executable, str(AUDIENCE), target, job_id, str(count), kind),
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(LARGE_LIMIT_S):
            if await process.stdout.readline() != b"ready\n":
                raise RuntimeError("the audience has ended")
        yield
    finally:
        process.kill()
        await process.wait()


async def measure_rounds(nodes: int, workers: int, repeats: int, results: Results) -> None:
    """Re-form the rounds of a job, with each audience in turn."""
    async with observed() as (one, beats):
        gathering = Gathering(nodes)
        agents = [
            SimulatedAgent(number, nodes, gathering.one, workers=workers) for number in range(nodes)
        ]
        async with living(agents, [open_channel(one.target) for _ in agents]):
            await gathering.all()
            for repeat in range(repeats):
                for name, (count, kind) in AUDIENCES.items():
                    with beats.watch() as late_ms:
                        async with audience(one.target, "rounds", count, kind):
                            await asyncio.sleep(PAUSE_S)
                            spent_s, began_s = one.cpu_s(), time.perf_counter()
                            await agents[repeat % nodes].fail()
                            await gathering.all()
                            took_ms = (time.perf_counter() - began_s) * 1000
                            spent_ms = (one.cpu_s() - spent_s) * 1000
                            await asyncio.sleep(PAUSE_S)
                    column = "failure until every node has its next Run"
                    results.add(TABLE, name, column, "ms", took_ms)
                    results.add(TABLE, name, "CPU of the coordinator", "ms", spent_ms)
                    results.add(TABLE, name, LATE, "ms", max(late_ms, default=0.0))


Pages = Callable[[], Awaitable[list[int]]]
"""Reads something large; returns the bytes of each message."""


async def measure_reading(
    what: str, read: Pages, one: Server, beats: Witness, results: Results
) -> None:
    """Read something large, and add what it costs."""
    with beats.watch() as late_ms:
        began_s = time.perf_counter()
        sizes = await read()
        took_ms = (time.perf_counter() - began_s) * 1000
        await asyncio.sleep(2 * BEAT_S)
    results.add(ANSWERS, what, "messages", "", len(sizes))
    results.add(ANSWERS, what, "longest", "KB", max(sizes) / 1000)
    results.add(ANSWERS, what, "took", "ms", took_ms)
    results.add(ANSWERS, what, LATE, "ms", max(late_ms, default=0.0))
    results.add(ANSWERS, what, "memory of the coordinator", "MB", one.rss_mb())
    results.write()


async def read_pages(call: Any, request: Any) -> list[Any]:
    """Return all pages of a list."""
    pages = [await call(request)]
    while pages[-1].next_page_token:
        request.page_token = pages[-1].next_page_token
        pages.append(await call(request))
    return pages


async def fail_job(channel: grpc.aio.Channel, number: int) -> None:
    """Let a job of one node run and fail, with a long traceback."""
    runs, job_id = Gathering(1), f"failed-{number:05}"
    agent = SimulatedAgent(number, 1, runs.one, job_id=job_id, restarts=0)
    async with living([agent], [channel]) as (life,):
        await runs.all()
        error = node_pb2.ErrorRecord(traceback=TRACEBACK)
        await agent.fail(node_pb2.WorkerExit(exit_code=1, error=error))
        await life


async def measure_jobs(count: int, results: Results) -> None:
    """List many failed jobs."""
    async with observed() as (one, beats), open_channel(one.target) as channel:
        numbers = iter(range(count - 1))  # the witness has a job too

        async def fail_some() -> None:
            for number in numbers:
                async with asyncio.timeout(LARGE_LIMIT_S):
                    await fail_job(channel, number)

        async def read() -> list[int]:
            stub: Any = service_grpc.JobServiceStub(channel)
            pages = await read_pages(stub.ListJobs, service_pb2.ListJobsRequest())
            return [page.ByteSize() for page in pages]

        await asyncio.gather(*(fail_some() for _ in range(ENDING_AT_ONCE)))
        what = f"ListJobs: {count:,} jobs with tracebacks of 64 KiB"
        await measure_reading(what, read, one, beats, results)


async def measure_nodes(nodes: int, workers: int, results: Results) -> None:
    """Read a huge job, whole and by pages."""
    title = f"{nodes:,} nodes x {workers}"
    async with (
        observed() as (one, beats),
        running_job(one.target, nodes, workers=workers),
        open_channel(one.target) as channel,
    ):
        stub: Any = service_grpc.JobServiceStub(channel)

        async def read_nodes() -> list[int]:
            stub: Any = node_grpc.NodeServiceStub(channel)
            request = node_service.ListNodesRequest(job_id="rounds")
            pages = await read_pages(stub.ListNodes, request)
            seen = sum(len(page.nodes) for page in pages)
            if seen != nodes:
                raise RuntimeError(f"{seen} of {nodes} nodes were read")
            return [page.ByteSize() for page in pages]

        await measure_reading(f"ListNodes: {title}", read_nodes, one, beats, results)
        for name, view in (
            ("GetJob", job_pb2.JOB_VIEW_FULL),
            ("GetJob, basic", job_pb2.JOB_VIEW_BASIC),
            ("GetJob, summary", job_pb2.JOB_VIEW_SUMMARY),
        ):
            request = service_pb2.GetJobRequest(job_id="rounds", view=view)

            async def read_job(request: service_pb2.GetJobRequest = request) -> list[int]:
                return [(await stub.GetJob(request)).ByteSize()]

            await measure_reading(f"{name}: {title}", read_job, one, beats, results)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("Measure what readers of jobs cost.")
    parts = ("rounds", "jobs", "nodes")
    parser.add_argument("--only", choices=parts, help="one part (default: all)")
    parser.add_argument("--repeats", type=int, default=9, help="rounds an audience (default: 9)")
    parser.add_argument("--size", type=int, default=64, help="nodes in rounds (default: 64)")
    parser.add_argument("--workers", type=int, default=8, help="workers of a node (default: 8)")
    parser.add_argument("--jobs", type=int, default=4_096, help="jobs to list (default: 4096)")
    parser.add_argument("--nodes", type=int, default=16_384, help="nodes to read (default: 16384)")
    return parser.parse_args()


async def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Measure all parts, or the one that was asked for."""
    if arguments.only in (None, "rounds"):
        await measure_rounds(arguments.size, arguments.workers, arguments.repeats, results)
        results.write()
    if arguments.only in (None, "jobs"):
        await measure_jobs(arguments.jobs, results)
    if arguments.only in (None, "nodes"):
        await measure_nodes(arguments.nodes, arguments.workers, results)
    return ()


if __name__ == "__main__":
    run(measure, parse_arguments())
