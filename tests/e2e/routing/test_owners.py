"""Agents that know several coordinators, of which one owns their job."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc

from rallypoint.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from support.processes.commands import NODE_AGENT
from support.routing.fleet import Fleet, fleet, job_of

LIMIT_S = 30
OTHERS = 1
"""A shard of the second coordinator."""
WORKER = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / f"started-{os.getpid()}").write_text(os.environ["RALLYPOINT_COORDINATOR"])
while not (folder / "end").exists():
    time.sleep(0.02)
"""


@asynccontextmanager
async def agent(
    targets: str, job_id: str, folder: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run an agent of a job with one node and one worker."""
    flags = ("--nnodes=1", "--nproc-per-node=1", "--last-call=0", "--restart-backoff=0")
    process = await asyncio.create_subprocess_exec(
        NODE_AGENT,
        f"--coordinator={targets}",
        f"--job-id={job_id}",
        "--node-name=n",
        "--local-addr=127.0.0.1",
        *flags,
        "--no-python",
        sys.executable,
        "-c",
        WORKER,
        str(folder),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        (folder / "end").touch()
        with suppress(TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


def started(folder: Path) -> list[str]:
    """Return the coordinators that each worker was given."""
    return [path.read_text() for path in folder.glob("started-*")]


async def until(made: Fleet, member: int, job_id: str) -> job_pb2.Job:
    """Return the job once a coordinator shows that its worker runs and its node is connected."""
    stub = job_service_pb2_grpc.JobServiceStub(made.members[member].channel)
    request = job_service_pb2.WatchJobRequest(job_id=job_id, across_runs=True)
    async with asyncio.timeout(LIMIT_S):
        while True:
            with suppress(grpc.aio.AioRpcError):
                async for answer in stub.WatchJob(request):
                    job: job_pb2.Job = answer.job
                    if job.nodes and job.nodes[0].attached and job.nodes[0].workers[0].pid:
                        return job
            await asyncio.sleep(0.05)


async def test_agent_finds_the_owner_among_several(tmp_path: Path) -> None:
    """It is sent there by the first. Its workers get all addresses, the owner's first."""
    async with fleet() as made:
        first, owner = made.members
        job_id = job_of(OTHERS)
        async with agent(f"127.0.0.1:1,{first.address},{owner.address}", job_id, tmp_path) as one:
            shown = await until(made, 0, job_id)
            assert len(shown.nodes) == 1
            (tmp_path / "end").touch()
            async with asyncio.timeout(LIMIT_S):
                _, logged = await one.communicate()

        assert one.returncode == 0, logged.decode()
        assert started(tmp_path) == [f"{owner.address},127.0.0.1:1,{first.address}"]


async def test_agent_needs_to_know_one_coordinator(tmp_path: Path) -> None:
    """The owner need not be one that the agent was given."""
    async with fleet() as made:
        first, _ = made.members
        job_id = job_of(OTHERS)
        (tmp_path / "end").touch()
        async with agent(first.address, job_id, tmp_path) as one:
            async with asyncio.timeout(LIMIT_S):
                _, logged = await one.communicate()

        assert one.returncode == 0, logged.decode()
        assert started(tmp_path) == [f"{made.members[1].address},{first.address}"]


async def test_workers_do_not_notice_a_move(tmp_path: Path) -> None:
    """Their job gets another owner while they run: the agent follows, the round stays."""
    async with fleet() as made:
        first, owner = made.members
        job_id = job_of(OTHERS)
        async with agent(f"{first.address},{owner.address}", job_id, tmp_path) as one:
            before = await until(made, 1, job_id)
            await made.give(first, OTHERS)
            after = await until(made, 1, job_id)
            (tmp_path / "end").touch()
            async with asyncio.timeout(LIMIT_S):
                _, logged = await one.communicate()

        assert one.returncode == 0, logged.decode()
        assert started(tmp_path) == [f"{owner.address},{first.address}"]
        assert before.round.header == after.round.header
        assert [worker.pid for worker in before.nodes[0].workers] == [
            worker.pid for worker in after.nodes[0].workers
        ]
