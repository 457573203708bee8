"""The readers of a job, as a separate process: python audience.py ADDRESS JOB COUNT reads|deaf.

Prints "ready" when every watcher has its first answer, or with `deaf` when the first answer is on
its way to all. Deaf watchers never read. Ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import sys

import grpc.aio

from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.wire.channel import client_options

CALLS_PER_CHANNEL = 50


async def attend(target: str, job_id: str, count: int, *, reads: bool) -> None:
    """Watch a job until standard input ends."""
    calls = []
    channels = []
    for number in range(count):
        if number % CALLS_PER_CHANNEL == 0:
            channels.append(grpc.aio.insecure_channel(target, options=client_options()))
        request = service_pb2.WatchJobRequest(job_id=job_id)
        calls.append(service_grpc.JobServiceStub(channels[-1]).WatchJob(request))
    tasks: list[asyncio.Task[None]] = []
    if reads:
        await asyncio.gather(*(call.read() for call in calls))
        tasks += [asyncio.create_task(_read_on(call)) for call in calls]  # noqa: TID251  # ended below
    else:
        await asyncio.gather(*(call.wait_for_connection() for call in calls))
    if any(call.done() for call in calls):
        raise RuntimeError("a watcher was refused")
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()


async def _read_on(call: grpc.aio.UnaryStreamCall) -> None:  # type: ignore[type-arg]
    while await call.read() is not grpc.aio.EOF:
        pass


if __name__ == "__main__":
    asyncio.run(attend(sys.argv[1], sys.argv[2], int(sys.argv[3]), reads=sys.argv[4] == "reads"))
