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
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import grpc.aio

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from harness.results import Results
from harness.swarm import METHOD, SimulatedAgent, Traffic, open_channel
from harness.tables import render_results
from harness.witness import BEAT_S, Witness
from nodes.forming import PAUSE_S, WINDOW_S, Gathering, read_cpu_s, read_rss_mb, server
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.v1 import node_service_pb2 as node_service
from rallypoint.v1 import node_service_pb2_grpc as node_grpc
from rallypoint.wire.channel import client_options

TABLE, ANSWERS = "readers", "large answers"
HARNESS = Path(__file__).parents[1] / "harness"
STEP_S_MAX = 300.0
"""Longest wait for one step."""
TRACEBACK = "\N{FIRE}" * 16_384
"""64 KiB: the longest that an agent may report."""
ENDING_AT_ONCE = 32
"""Jobs that fail at the same time."""
LEASE_MS = 1_800_000
"""Thousands of simulated nodes in one process cannot keep a short lease."""
STREAMS_PER_CHANNEL = 256
"""Streams of simulated nodes that share a connection, so that 16,384 fit into one process."""
AUDIENCES = {
    "alone": (0, "reads"),
    "50 watchers that read": (50, "reads"),
    "500 watchers that never read": (500, "deaf"),
}


@asynccontextmanager
async def coordinator() -> AsyncIterator[tuple[int, int, Witness]]:
    """Run a coordinator; yield its port, its pid, and a witness that beats."""
    command = (sys.executable, str(HARNESS / "lifted.py"), "--host", "127.0.0.1", "--port", "0")
    async with server(*command, "--log-level", "error") as (port, pid):
        await asyncio.sleep(WINDOW_S)
        witness = Witness(port)
        async with asyncio.TaskGroup() as tasks:
            beats = tasks.create_task(witness.beat())
            try:
                yield port, pid, witness
            finally:
                beats.cancel()


@asynccontextmanager
async def audience(port: int, job_id: str, count: int, kind: str) -> AsyncIterator[None]:
    """Let so many watchers watch a job, from another process, while the context is open."""
    if not count:
        yield
        return
    process = await asyncio.create_subprocess_exec(
        *("nice", sys.executable, str(HARNESS / "audience.py")),
        *(f"127.0.0.1:{port}", job_id, str(count), kind),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(STEP_S_MAX):
            if await process.stdout.readline() != b"ready\n":
                raise RuntimeError("the audience has ended")
        yield
    finally:
        process.kill()
        await process.wait()


@dataclass(slots=True)
class Rounds:
    """Rounds with one audience."""

    again_ms: list[float] = field(default_factory=list)
    """From before the report of a failure to the last agent's Run."""
    cpu_ms: list[float] = field(default_factory=list)
    """CPU time of the coordinator during that."""
    late_ms: float = 0.0
    """The slowest answer to a heartbeat of another job, all the time."""


async def measure_rounds(nodes: int, workers: int, repeats: int) -> dict[str, Rounds]:
    """Re-form the rounds of a job, with each audience in turn."""
    found = {name: Rounds() for name in AUDIENCES}
    async with coordinator() as (port, pid, witness), asyncio.TaskGroup() as lives:
        gathering = Gathering(nodes)
        agents = [
            SimulatedAgent(number, nodes, Traffic(), gathering.one, workers=workers)
            for number in range(nodes)
        ]
        tasks = [lives.create_task(agent.live(open_channel(port))) for agent in agents]
        await gathering.all()
        for repeat in range(repeats):
            for name, (count, kind) in AUDIENCES.items():
                with witness.watch() as late_ms:
                    async with audience(port, "rounds", count, kind):
                        await asyncio.sleep(PAUSE_S)
                        spent_s, began = read_cpu_s(pid), time.perf_counter()
                        await agents[repeat % nodes].fail()
                        await gathering.all()
                        found[name].again_ms.append((time.perf_counter() - began) * 1000)
                        found[name].cpu_ms.append((read_cpu_s(pid) - spent_s) * 1000)
                        await asyncio.sleep(PAUSE_S)
                found[name].late_ms = max(found[name].late_ms, *late_ms)
        for task in tasks:
            task.cancel()
    return found


@dataclass(slots=True)
class Reading:
    """Something large that was read."""

    what: str
    pages: int = 0
    bytes_max: int = 0
    """Longest message."""
    took_s: float = 0.0
    late_ms: float = 0.0
    """Slowest answer to a heartbeat of another job meanwhile."""
    rss_mb: float = 0.0
    """Memory of the coordinator afterwards."""


async def fail_job(channel: grpc.aio.Channel, number: int) -> None:
    """Let a job of one node run and fail, with a long traceback."""
    agent = SimulatedAgent(number, 1, Traffic(), lambda: None, job_id=f"failed-{number:05}")
    call: Any = channel.stream_stream(
        METHOD,
        request_serializer=agent_pb2.SessionRequest.SerializeToString,
        response_deserializer=agent_pb2.SessionResponse.FromString,
    )()
    agent.call = call
    hello = agent.hello()
    hello.hello.spec.max_restarts = 0
    await agent.say(hello, numbered=False)
    agent.epoch = (await call.read()).epoch
    await agent.say(agent_pb2.SessionRequest(started=agent_pb2.Started(round=1, pids=[1])))
    exit = node_pb2.WorkerExit(exit_code=1, error=node_pb2.ErrorRecord(traceback=TRACEBACK))
    worker = node_pb2.Worker(local_rank=0, pid=1, exit=exit)
    exited = agent_pb2.Exited(round=1, workers=[worker])
    await agent.say(agent_pb2.SessionRequest(exited=exited))
    while not (await call.read()).desired.HasField("stop"):
        pass
    ready = agent_pb2.Ready(round=1, master_port=20_000)
    await agent.say(agent_pb2.SessionRequest(ready=ready))
    while not (await call.read()).desired.HasField("finished"):
        pass
    await agent.say(agent_pb2.SessionRequest(goodbye=agent_pb2.Goodbye(text="done")))
    while await call.read() is not grpc.aio.EOF:
        pass


async def read_jobs(stub: Any, reading: Reading) -> None:
    """Read all jobs."""
    token = ""
    while reading.pages == 0 or token:
        page = await stub.ListJobs(service_pb2.ListJobsRequest(page_token=token))
        reading.pages += 1
        reading.bytes_max = max(reading.bytes_max, page.ByteSize())
        token = page.next_page_token


async def measure_jobs(count: int) -> list[Reading]:
    """List many failed jobs."""
    reading = Reading(f"ListJobs: {count:,} jobs with tracebacks of 64 KiB")
    async with coordinator() as (port, pid, witness):
        target = f"127.0.0.1:{port}"
        async with grpc.aio.insecure_channel(target, options=client_options()) as channel:
            numbers = iter(range(count - 1))  # the witness has a job too

            async def fail_some() -> None:
                for number in numbers:
                    async with asyncio.timeout(STEP_S_MAX):
                        await fail_job(channel, number)

            await asyncio.gather(*(fail_some() for _ in range(ENDING_AT_ONCE)))
            stub = service_grpc.JobServiceStub(channel)
            with witness.watch() as late_ms:
                began = time.perf_counter()
                await read_jobs(stub, reading)
                reading.took_s = time.perf_counter() - began
            reading.late_ms = max(late_ms)
            reading.rss_mb = read_rss_mb(pid)
    return [reading]


@asynccontextmanager
async def running_job(port: int, nodes: int, workers: int) -> AsyncIterator[None]:
    """Let a job of so many nodes run while the context is open.

    Args:
        port: of the coordinator on this host.
        nodes: of the job, each a simulated agent.
        workers: of each node.
    """
    gathering = Gathering(nodes, STEP_S_MAX)
    async with asyncio.TaskGroup() as lives:
        tasks = []
        for begin in range(0, nodes, STREAMS_PER_CHANNEL):
            channel = open_channel(port)
            await channel.channel_ready()
            numbers = range(begin, min(begin + STREAMS_PER_CHANNEL, nodes))
            welcomed = Gathering(len(numbers), STEP_S_MAX)
            for number in numbers:
                agent = SimulatedAgent(
                    *(number, nodes, Traffic(), gathering.one),
                    on_welcome=welcomed.one,
                    lease_ms=LEASE_MS,
                    workers=workers,
                )
                tasks.append(lives.create_task(agent.live(channel)))
            await welcomed.all()
        await gathering.all()
        await asyncio.sleep(PAUSE_S)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def measure_nodes(nodes: int, workers: int) -> list[Reading]:
    """Read a huge job, whole and by pages."""
    title = f"{nodes:,} nodes x {workers}"
    found = [
        Reading(f"{name}: {title}")
        for name in ("ListNodes", "GetJob", "GetJob, basic", "GetJob, summary")
    ]
    async with coordinator() as (port, pid, witness), running_job(port, nodes, workers):
        target = f"127.0.0.1:{port}"
        async with grpc.aio.insecure_channel(target, options=client_options()) as channel:
            for reading, view in zip(
                found,
                (
                    None,
                    job_pb2.JOB_VIEW_FULL,
                    job_pb2.JOB_VIEW_BASIC,
                    job_pb2.JOB_VIEW_SUMMARY,
                ),
                strict=True,
            ):
                with witness.watch() as late_ms:
                    began = time.perf_counter()
                    if view is None:
                        await read_nodes(channel, reading, nodes)
                    else:
                        await read_job(channel, reading, view)
                    reading.took_s = time.perf_counter() - began
                    await asyncio.sleep(2 * BEAT_S)
                reading.late_ms = max(late_ms)
                reading.rss_mb = read_rss_mb(pid)
    return found


async def read_nodes(channel: grpc.aio.Channel, reading: Reading, nodes: int) -> None:
    """Read all nodes of the job."""
    stub: Any = node_grpc.NodeServiceStub(channel)
    token, seen = "", 0
    while reading.pages == 0 or token:
        request = node_service.ListNodesRequest(job_id="rounds", page_token=token)
        page = await stub.ListNodes(request)
        reading.pages += 1
        reading.bytes_max = max(reading.bytes_max, page.ByteSize())
        seen += len(page.nodes)
        token = page.next_page_token
    if seen != nodes:
        raise RuntimeError(f"{seen} of {nodes} nodes were read")


async def read_job(
    channel: grpc.aio.Channel, reading: Reading, view: job_pb2.JobView.ValueType
) -> None:
    """Read the job."""
    stub: Any = service_grpc.JobServiceStub(channel)
    answer = await stub.GetJob(service_pb2.GetJobRequest(job_id="rounds", view=view))
    reading.pages, reading.bytes_max = 1, answer.ByteSize()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure what readers of jobs cost.")
    parts = ("rounds", "jobs", "nodes")
    parser.add_argument("--only", choices=parts, help="one part (default: all)")
    parser.add_argument("--repeats", type=int, default=9, help="rounds an audience (default: 9)")
    parser.add_argument("--size", type=int, default=64, help="nodes in rounds (default: 64)")
    parser.add_argument("--workers", type=int, default=8, help="workers of a node (default: 8)")
    parser.add_argument("--jobs", type=int, default=4_096, help="jobs to list (default: 4096)")
    parser.add_argument("--nodes", type=int, default=16_384, help="nodes to read (default: 16384)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples here")
    return parser.parse_args()


async def measure_all(arguments: argparse.Namespace, results: Results) -> None:
    """Measure, and write each table as soon as it is known."""
    if arguments.only in (None, "rounds"):
        rounds = await measure_rounds(arguments.size, arguments.workers, arguments.repeats)
        for name, row in rounds.items():
            column = "failure until every node has its next Run"
            results.add(TABLE, name, column, "ms", *row.again_ms)
            results.add(TABLE, name, "CPU of the coordinator", "ms", *row.cpu_ms)
            results.add(TABLE, name, "slowest heartbeat of another job", "ms", row.late_ms)
        results.write()
    if arguments.only in (None, "jobs"):
        add_readings(results, await measure_jobs(arguments.jobs))
    if arguments.only in (None, "nodes"):
        add_readings(results, await measure_nodes(arguments.nodes, arguments.workers))


def add_readings(results: Results, found: list[Reading]) -> None:
    """Add and write what large answers cost."""
    for one in found:
        results.add(ANSWERS, one.what, "messages", "", one.pages)
        results.add(ANSWERS, one.what, "longest", "KB", one.bytes_max / 1000)
        results.add(ANSWERS, one.what, "took", "ms", one.took_s * 1000)
        results.add(ANSWERS, one.what, "slowest heartbeat of another job", "ms", one.late_ms)
        results.add(ANSWERS, one.what, "memory of the coordinator", "MB", one.rss_mb)
    results.write()


def main() -> NoReturn:
    """Measure and print."""
    arguments = parse_arguments()
    results = Results(arguments.json)
    asyncio.run(measure_all(arguments, results))
    print(render_results(results))
    # Skip the end of the interpreter: grpc.aio has been seen to hang there after a thousand
    # channels, with all of them closed.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
