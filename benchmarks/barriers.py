"""What barriers cost, beside those of torch over a TCPStore.

A real coordinator process; the node and its workers are in this process. A worker is one call, so
the figures contain the cost of a thousand calls in one Python process, too.

    python benchmarks/barriers.py
    python benchmarks/barriers.py --only release --repeats 20
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from harness.program import Wrong, make_parser, run
from harness.results import Results
from harness.swarm import Gathering, SimulatedAgent, living, open_channel
from nodes.forming import Server, coordinator, server
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from rallypoint.wire.errors import unpack_detail

TABLE, RATE = "barriers", "small barriers"
TOOK = "until all have their answer"
ARRIVE = "/rallypoint.v1.BarrierService/Arrive"
JOB = "barriers"
SEPARATE = ("grpc.use_local_subchannel_pool", 1)
"""An option: no connection is shared with another channel."""
CHANNELS = 16
"""Connections that the workers share; on a cluster each has its own."""
LIMIT_S = 60.0
LOOP_S = 20.0
"""How long small barriers are counted."""
ARRIVAL_S = 0.3
"""How long all but one of torch's workers get to arrive; there is nothing to ask."""
ASK_S = 0.02
"""How often the coordinator is asked who has arrived."""
DEADLINE_S = 1
"""How long workers wait for one that does not come."""
SIZES = (8, 64, 256)
"""Of the barriers beside torch's."""


class Workers:
    """The calls of a job's workers, and its one or two nodes."""

    def __init__(self, target: str, nodes: list[SimulatedAgent]) -> None:
        self.nodes = nodes
        self.lives: list[asyncio.Task[None]] = []
        """Of the nodes."""
        self._channels = [open_channel(target, SEPARATE) for _ in range(CHANNELS)]
        # Answers are not decoded: a worker decodes only its own.
        self._calls: list[Any] = [channel.unary_unary(ARRIVE) for channel in self._channels]
        self._barriers: Any = barrier_grpc.BarrierServiceStub(self._channels[0])

    async def await_arrivals(self, count: int) -> None:
        """Wait until so many workers wait at the only barrier."""
        request = barrier_pb2.ListBarriersRequest(job_id=JOB)
        async with asyncio.timeout(LIMIT_S):
            while True:
                open_now = (await self._barriers.ListBarriers(request)).barriers
                if [barrier.arrived_count for barrier in open_now] == [count]:
                    return
                await asyncio.sleep(ASK_S)

    def arrive(self, rank: int, generation: int, size: int = 0, timeout_s: int = 0) -> Any:
        """Let a worker begin to arrive at the barrier of all ranks."""
        request = barrier_pb2.ArriveRequest(
            job_id=JOB,
            name="benchmark",
            participant=barrier_pb2.Participant(rank=rank),
            payload=bytes(size),
            request_id=f"{rank}-{generation}",
        )
        if timeout_s:
            request.timeout.CopyFrom(Duration(seconds=timeout_s))
        held = self.nodes[0].held
        assert held is not None
        metadata = ((WORKER_TOKEN_KEY, held.worker_token),)
        call = self._calls[rank % CHANNELS]
        return call(request.SerializeToString(), timeout=LIMIT_S, metadata=metadata)


@asynccontextmanager
async def job(workers: int, *, nodes: int = 1) -> AsyncIterator[tuple[Workers, Server]]:
    """Run a coordinator and a job of one or two nodes.

    Args:
        workers: of the job; the second node has one of them: that of the highest rank.
        nodes: 1 or 2.
    """
    async with server(*coordinator(kind="lifted")) as one:
        runs = Gathering(nodes)
        agents = [
            SimulatedAgent(number, nodes, runs.one, job_id=JOB, workers=count)
            for number, count in enumerate((workers + 1 - nodes, 1)[:nodes])
        ]
        made = Workers(one.target, agents)
        channels = [open_channel(one.target, SEPARATE) for _ in agents]
        async with living(agents, channels) as made.lives:
            await runs.all()
            yield made, one


async def release(count: int, size: int, repeats: int) -> list[float]:
    """Return how long after the last arrival the last worker had its answer, in ms."""
    took_ms: list[float] = []
    async with job(count) as (one, _):
        for generation in range(repeats):
            calls = [one.arrive(rank, generation, size) for rank in range(count - 1)]
            await one.await_arrivals(count - 1)
            began_s = time.perf_counter()
            calls.append(one.arrive(count - 1, generation, size))
            ends_s = await asyncio.gather(*(_end_of(call) for call in calls))
            took_ms.append((max(ends_s) - began_s) * 1000)
    return took_ms


async def _end_of(call: Any) -> float:
    await call
    return time.perf_counter()


async def rate(count: int, seconds: float) -> tuple[float, float]:
    """Return the barriers of so many workers in a minute, and the coordinator's share of a core."""
    async with job(count) as (one, coordinator):
        began_s, spent_s, generation = time.perf_counter(), coordinator.cpu_s(), 0
        while time.perf_counter() - began_s < seconds:
            await asyncio.gather(*(one.arrive(rank, generation) for rank in range(count)))
            generation += 1
        took_s = time.perf_counter() - began_s
        return generation * 60 / took_s, (coordinator.cpu_s() - spent_s) / took_s


async def worker_fails(one: Workers) -> None:
    """Report that the worker of the second node has failed."""
    await one.nodes[1].fail()


async def node_vanishes(one: Workers) -> None:
    """Break the stream of the second node. Calls of its workers would remain."""
    one.lives[1].cancel()


async def is_lost(how: Break, one: Workers, count: int) -> float:
    """Lose the last worker while the others wait; return how long until all know, in seconds."""
    calls = [one.arrive(rank, 0) for rank in range(count - 1)]
    await one.await_arrivals(count - 1)
    began_s = time.perf_counter()
    await how(one)
    ends = await asyncio.gather(*(_break_of(call) for call in calls))
    assert all(list(broken.lost.ranks) == [count - 1] for _, broken in ends)
    return max(end_s for end_s, _ in ends) - began_s


async def is_missing(one: Workers, count: int) -> float:
    """Let the last worker not come; return how long after the deadline all know, in seconds."""
    began_s = time.perf_counter()
    calls = [one.arrive(rank, 0, timeout_s=DEADLINE_S) for rank in range(count - 1)]
    ends = await asyncio.gather(*(_break_of(call) for call in calls))
    assert all(list(broken.missing.ranks) == [count - 1] for _, broken in ends)
    return max(end_s for end_s, _ in ends) - began_s - DEADLINE_S


async def _break_of(call: Any) -> tuple[float, details_pb2.BarrierBroken]:
    """Return when the call of a worker has ended, and how the barrier broke."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        broken = unpack_detail(error.trailing_metadata())
        assert isinstance(broken, details_pb2.BarrierBroken), error.details()
        return time.perf_counter(), broken
    raise AssertionError("the barrier was passed")


Break = Callable[[Workers], Awaitable[None]]


async def breaks(how: Break | None, count: int, repeats: int) -> list[float]:
    """Return how long after a barrier broke all workers knew, and knew why, in ms.

    Args:
        how: loses the last worker; None: it does not come.
        count: how many workers there are.
        repeats: how often.
    """
    took_ms: list[float] = []
    for _ in range(repeats):
        async with job(count, nodes=2) as (one, _pid):
            took_s = await (is_lost(how, one, count) if how else is_missing(one, count))
            took_ms.append(took_s * 1000)
    return took_ms


def torch_barrier(count: int, repeats: int) -> list[float]:
    """Return how long after the last arrival all had left a barrier of torch's, in ms."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public
    from torch.distributed.elastic.utils import store as store_util

    limit = timedelta(seconds=LIMIT_S)
    master = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)

    stores = [
        TCPStore("127.0.0.1", master.port, wait_for_workers=False, timeout=limit)
        for _ in range(count)
    ]
    took_ms: list[float] = []
    for repeat in range(repeats):
        ended_s: list[float] = []

        def wait(store: TCPStore, prefix: str, ended_s: list[float] = ended_s) -> None:
            store_util.barrier(store, count, prefix, LIMIT_S)
            ended_s.append(time.perf_counter())

        threads = [
            threading.Thread(target=wait, args=(store, f"b{repeat}")) for store in stores[1:]
        ]
        for thread in threads:
            thread.start()
        time.sleep(ARRIVAL_S)
        began_s = time.perf_counter()
        wait(stores[0], f"b{repeat}")
        for thread in threads:
            thread.join()
        took_ms.append((max(ended_s) - began_s) * 1000)
    return took_ms


def measure(chosen: argparse.Namespace, results: Results) -> Wrong:
    """Add a row for each measurement."""
    wanted = {chosen.only} if chosen.only else {"release", "rate", "loss", "torch"}
    if "release" in wanted:
        took_ms = asyncio.run(release(chosen.workers, 64, chosen.repeats))
        row = f"{chosen.workers:,} workers, 64 B from each to all"
        results.add(TABLE, row, TOOK, "ms", *took_ms)
    if "torch" in wanted:
        for _ in range(chosen.turns):
            for count in chosen.sizes:
                ours = asyncio.run(release(count, 0, chosen.repeats))
                results.add(TABLE, f"{count} workers", TOOK, "ms", *ours)
                theirs = torch_barrier(count, chosen.repeats)
                row = f"{count} workers, torch over a TCPStore"
                results.add(TABLE, row, TOOK, "ms", *theirs)
    results.write()
    if "loss" in wanted:
        for how, row in (
            (worker_fails, "a worker of 64 fails: until all others have its name"),
            (node_vanishes, "the node of a worker of 64 vanishes: until all others have its name"),
            (None, "a worker of 64 is missing: from the deadline until all know"),
        ):
            results.add(TABLE, row, TOOK, "ms", *asyncio.run(breaks(how, 64, chosen.losses)))
    if "rate" in wanted:
        per_minute, share = asyncio.run(rate(8, chosen.seconds))
        results.add(RATE, "8 workers", "barriers a minute", "", per_minute)
        results.add(RATE, "8 workers", "CPU of the coordinator", "% of a core", 100 * share)
    return ()


def parse_arguments() -> argparse.Namespace:
    parser = make_parser("Measure barriers.")
    parser.add_argument("--only", choices=["release", "rate", "loss", "torch"])
    parser.add_argument("--repeats", type=int, default=10, help="generations (default: 10)")
    parser.add_argument("--turns", type=int, default=3, help="beside torch's (default: 3)")
    parser.add_argument(
        "--quick", action="store_true", help="everything once and small: shows that it works"
    )
    chosen = parser.parse_args()
    chosen.workers, chosen.sizes, chosen.losses, chosen.seconds = 1_024, SIZES, 5, LOOP_S
    if chosen.quick:
        chosen.workers, chosen.sizes, chosen.losses, chosen.seconds = 64, SIZES[:1], 1, 1.0
        chosen.repeats = chosen.turns = 1
    return chosen


if __name__ == "__main__":
    run(measure, parse_arguments())
