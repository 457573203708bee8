"""What barriers cost, beside those of torch over a TCPStore.

A real coordinator process; the node and its workers are in this process. A worker is one call, so
the figures contain the cost of a thousand calls in one Python process, too.

    python benchmarks/barriers.py
    python benchmarks/barriers.py --only release --repeats 20
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from harness.results import Results
from harness.tables import render_results
from nodes.forming import WINDOW_S, read_cpu_s, server
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.wire.channel import client_options
from rallypoint.wire.errors import unpack_detail

TABLE, RATE = "barriers", "small barriers"
TOOK = "until all have their answer"
ARRIVE = "/rallypoint.v1.BarrierService/Arrive"
KEY = "rallypoint-worker-token"
CHANNELS = 16
"""Connections that the workers share; on a cluster each has its own."""
OPTIONS = (*client_options(), ("grpc.use_local_subchannel_pool", 1))
BEAT_S = 1.0
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
LIFTED = Path(__file__).with_name("harness") / "lifted.py"


class Node:
    """A node whose workers all run, and the calls of its workers."""

    def __init__(self, port: int, workers: int, name: str = "n", nodes: int = 1) -> None:
        self.job_id, self.workers, self.name, self.nodes = "barriers", workers, name, nodes
        self.second: Node | None = None
        """The other node of the job, with one worker: that of the highest rank."""
        self._channels = [
            grpc.aio.insecure_channel(
                f"127.0.0.1:{port}",
                options=(*client_options(), ("grpc.use_local_subchannel_pool", 1)),
            )
            for _ in range(CHANNELS)
        ]
        # Answers are not decoded: a worker decodes only its own.
        self._calls: list[Any] = [channel.unary_unary(ARRIVE) for channel in self._channels]
        self._barriers: Any = barrier_grpc.BarrierServiceStub(self._channels[0])
        self._stream = agent_grpc.AgentServiceStub(self._channels[0]).Session()
        self._session = secrets.token_hex(16)
        self._sequence = self.epoch = 0
        self.token, self.port = "", port
        self.round = 0

    async def begin(self) -> None:
        """Join, and wait for the order to run."""
        spec = job_pb2.JobSpec(min_nodes=self.nodes, max_nodes=self.nodes, max_restarts=100)
        hello = agent_pb2.Hello(
            protocol_version=1,
            job_id=self.job_id,
            spec=spec,
            node_name=self.name,
            address="10.0.0.1",
            local_world_size=self.workers,
            ready=agent_pb2.Ready(master_port=20_000),
        )
        await self._send(hello=hello)
        while True:
            message: Any = await self._stream.read()
            self.epoch = message.epoch
            desired = message.welcome.desired if message.HasField("welcome") else message.desired
            if desired.HasField("run"):
                self.token = desired.run.worker_token
                self.round = desired.run.header.number
                await self._report(started=agent_pb2.Started(pids=range(1, self.workers + 1)))
                return

    async def beat(self) -> None:
        """Send heartbeats, and read what comes."""
        for number in range(1, 1_000_000):
            await self._send(heartbeat=agent_pb2.Heartbeat(number=number))
            await self._stream.read()
            await asyncio.sleep(BEAT_S)

    async def fail(self, local_rank: int) -> None:
        """Report that a worker has failed."""
        exit = node_pb2.WorkerExit(exit_code=1)
        worker = node_pb2.Worker(local_rank=local_rank, exit=exit)
        await self._report(exited=agent_pb2.Exited(workers=[worker]))

    def vanish(self) -> None:
        """Break the node's stream, and do not come back. The calls of its workers remain."""
        self._stream.cancel()

    async def await_arrivals(self, count: int) -> None:
        """Wait until so many workers wait at the only barrier."""
        request = barrier_pb2.ListBarriersRequest(job_id=self.job_id)
        async with asyncio.timeout(LIMIT_S):
            while True:
                open_now = (await self._barriers.ListBarriers(request)).barriers
                if [barrier.arrived_count for barrier in open_now] == [count]:
                    return
                await asyncio.sleep(ASK_S)

    async def _report(self, **message: Any) -> None:
        self._sequence += 1
        for report in message.values():
            report.round = self.round
        await self._send(sequence=self._sequence, **message)

    async def _send(self, **message: Any) -> None:
        request = agent_pb2.SessionRequest(session_id=self._session, connection=1, **message)
        request.epoch = self.epoch
        await self._stream.write(request)

    def request(self, rank: int, generation: int, size: int = 0, timeout_s: int = 0) -> bytes:
        """Return the encoded request of a worker, at the barrier of all ranks."""
        request = barrier_pb2.ArriveRequest(
            job_id=self.job_id,
            name="benchmark",
            participant=barrier_pb2.Participant(rank=rank),
            payload=bytes(size),
            request_id=f"{rank}-{generation}",
        )
        if timeout_s:
            request.timeout.CopyFrom(Duration(seconds=timeout_s))
        return request.SerializeToString()

    def arrive(self, rank: int, request: bytes, timeout_s: float = LIMIT_S) -> Any:
        """Begin to arrive."""
        call = self._calls[rank % CHANNELS]
        return call(request, timeout=timeout_s, metadata=((KEY, self.token),))

    async def close(self) -> None:
        self._stream.cancel()
        for channel in self._channels:
            await channel.close()


@asynccontextmanager
async def node(workers: int, *, nodes: int = 1) -> AsyncIterator[tuple[Node, int]]:
    """Run a coordinator and a job of one or two nodes; yield the first and the coordinator's pid.

    Args:
        workers: of the job; the second node has one of them.
        nodes: 1 or 2.
    """
    command = (sys.executable, str(LIFTED), "--host", "127.0.0.1", "--port", "0")
    async with server(*command, "--log-level", "error") as (port, pid):
        await asyncio.sleep(WINDOW_S)
        one = Node(port, workers + 1 - nodes, "n1", nodes)
        both = [one]
        if nodes > 1:
            one.second = Node(port, 1, "n2", nodes)
            both.append(one.second)
        await asyncio.gather(*(each.begin() for each in both))
        async with asyncio.TaskGroup() as tasks:
            beats = [tasks.create_task(each.beat()) for each in both]
            try:
                yield one, pid
            finally:
                for beat in beats:
                    beat.cancel()
                for each in both:
                    await each.close()


async def release(count: int, size: int, repeats: int) -> list[float]:
    """Return how long after the last arrival the last worker had its answer, in ms."""
    took_ms: list[float] = []
    async with node(count) as (one, _):
        for generation in range(repeats):
            requests = [one.request(rank, generation, size) for rank in range(count)]
            calls = [one.arrive(rank, requests[rank]) for rank in range(count - 1)]
            await one.await_arrivals(count - 1)
            began_s = time.perf_counter()
            calls.append(one.arrive(count - 1, requests[-1]))
            ends_s = await asyncio.gather(*(_end_of(call) for call in calls))
            took_ms.append((max(ends_s) - began_s) * 1000)
    return took_ms


async def _end_of(call: Any) -> float:
    await call
    return time.perf_counter()


async def rate(count: int, seconds: float) -> tuple[float, float]:
    """Return the barriers of so many workers in a minute, and the coordinator's share of a core."""
    async with node(count) as (one, pid):
        began_s, spent_s, generation = time.perf_counter(), read_cpu_s(pid), 0
        while time.perf_counter() - began_s < seconds:
            calls = [one.arrive(rank, one.request(rank, generation)) for rank in range(count)]
            await asyncio.gather(*calls)
            generation += 1
        took_s = time.perf_counter() - began_s
        return generation * 60 / took_s, (read_cpu_s(pid) - spent_s) / took_s


async def worker_fails(one: Node, count: int) -> tuple[float, list[Failure]]:
    """Report a failed worker while the others wait; return when, and how their calls ended."""
    assert one.second is not None
    calls = [one.arrive(rank, one.request(rank, 0)) for rank in range(count - 1)]
    await one.await_arrivals(count - 1)
    began_s = time.perf_counter()
    await one.second.fail(0)
    ends = await _failures_of(calls)
    assert all(list(end.broken.lost.ranks) == [count - 1] for end in ends)
    return began_s, ends


async def node_vanishes(one: Node, count: int) -> tuple[float, list[Failure]]:
    """Break the stream of the second node while the others wait; return when, and how it ended."""
    assert one.second is not None
    calls = [one.arrive(rank, one.request(rank, 0)) for rank in range(count - 1)]
    await one.await_arrivals(count - 1)
    began_s = time.perf_counter()
    one.second.vanish()
    ends = await _failures_of(calls)
    assert all(list(end.broken.lost.ranks) == [count - 1] for end in ends)
    return began_s, ends


async def worker_is_missing(one: Node, count: int) -> tuple[float, list[Failure]]:
    """Wait for a worker that does not come; return the deadline, and how it ended."""
    requests = [one.request(rank, 0, timeout_s=DEADLINE_S) for rank in range(count - 1)]
    began_s = time.perf_counter()
    calls = [one.arrive(rank, request) for rank, request in enumerate(requests)]
    ends = await _failures_of(calls)
    assert all(list(end.broken.missing.ranks) == [count - 1] for end in ends)
    return began_s + DEADLINE_S, ends


@dataclass(frozen=True, slots=True)
class Failure:
    """How the call of a worker ended."""

    end_s: float
    broken: details_pb2.BarrierBroken


async def _failures_of(calls: list[Any]) -> list[Failure]:
    return list(await asyncio.gather(*(_failure_of(call) for call in calls)))


async def _failure_of(call: Any) -> Failure:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        broken = unpack_detail(error.trailing_metadata())
        assert isinstance(broken, details_pb2.BarrierBroken), error.details()
        return Failure(time.perf_counter(), broken)
    raise AssertionError("the barrier was passed")


Break = Callable[[Node, int], Awaitable[tuple[float, list[Failure]]]]


async def breaks(how: Break, count: int, repeats: int) -> list[float]:
    """Return how long after a barrier broke all workers knew, and knew why, in ms."""
    took_ms: list[float] = []
    for _ in range(repeats):
        async with node(count, nodes=2) as (one, _pid):
            since_s, ends = await how(one, count)
            took_ms.append((max(end.end_s for end in ends) - since_s) * 1000)
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


def measure(wanted: set[str], chosen: argparse.Namespace, results: Results) -> None:
    """Add a row for each measurement."""
    if "release" in wanted:
        took_ms = asyncio.run(release(chosen.workers, 64, chosen.repeats))
        results.add(
            TABLE, f"{chosen.workers:,} workers, 64 B from each to all", TOOK, "ms", *took_ms
        )
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
            (worker_is_missing, "a worker of 64 is missing: from the deadline until all know"),
        ):
            results.add(TABLE, row, TOOK, "ms", *asyncio.run(breaks(how, 64, chosen.losses)))
    if "rate" in wanted:
        per_minute, share = asyncio.run(rate(8, chosen.seconds))
        results.add(RATE, "8 workers", "barriers a minute", "", per_minute)
        results.add(RATE, "8 workers", "CPU of the coordinator", "% of a core", 100 * share)
    results.write()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure barriers.")
    parser.add_argument("--only", choices=["release", "rate", "loss", "torch"])
    parser.add_argument("--repeats", type=int, default=10, help="generations (default: 10)")
    parser.add_argument("--turns", type=int, default=3, help="beside torch's (default: 3)")
    parser.add_argument(
        "--quick", action="store_true", help="everything once and small: shows that it works"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples here")
    chosen = parser.parse_args()
    chosen.workers, chosen.sizes, chosen.losses, chosen.seconds = 1_024, SIZES, 5, LOOP_S
    if chosen.quick:
        chosen.workers, chosen.sizes, chosen.losses, chosen.seconds = 64, SIZES[:1], 1, 1.0
        chosen.repeats = chosen.turns = 1
    return chosen


def main() -> None:
    chosen = parse_arguments()
    wanted = {chosen.only} if chosen.only else {"release", "rate", "loss", "torch"}
    results = Results(chosen.json)
    measure(wanted, chosen, results)
    print(render_results(results))


if __name__ == "__main__":
    main()
