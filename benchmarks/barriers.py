"""What barriers cost, beside those of torch over a TCPStore.

A real coordinator process; the node and its workers are in this process. A worker is one call, so
the figures contain the cost of a thousand calls in one Python process, too.

    python benchmarks/barriers.py
    python benchmarks/barriers.py --only release --repeats 20
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio

from launch import describe_machine
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.wire.channel import client_options
from rounds import WINDOW_S, read_cpu_s, server

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
"""How long all but one of a few workers get to arrive."""
LIFTED = Path(__file__).with_name("harness") / "lifted.py"


class Node:
    """A node whose workers all run, and the calls of its workers."""

    def __init__(self, port: int, job_id: str, workers: int) -> None:
        self.job_id, self.workers = job_id, workers
        self._channels = [
            grpc.aio.insecure_channel(
                f"127.0.0.1:{port}",
                options=(*client_options(), ("grpc.use_local_subchannel_pool", 1)),
            )
            for _ in range(CHANNELS)
        ]
        # Answers are not decoded: a worker decodes only its own.
        self._calls: list[Any] = [channel.unary_unary(ARRIVE) for channel in self._channels]
        self._stream = agent_grpc.AgentServiceStub(self._channels[0]).Session()
        self._session = f"{abs(hash(job_id)):032x}"[:32]
        self._sequence = self._epoch = 0
        self.token = ""
        self.round = 0

    async def begin(self) -> None:
        """Join, and wait for the order to run."""
        spec = job_pb2.JobSpec(min_nodes=1, max_nodes=1, max_restarts=100)
        hello = agent_pb2.Hello(
            protocol_version=1,
            job_id=self.job_id,
            spec=spec,
            node_name="n",
            address="10.0.0.1",
            local_world_size=self.workers,
            ready=agent_pb2.Ready(master_port=20_000),
        )
        await self._send(hello=hello)
        while True:
            message: Any = await self._stream.read()
            self._epoch = message.epoch
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

    async def _report(self, **message: Any) -> None:
        self._sequence += 1
        for report in message.values():
            report.round = self.round
        await self._send(sequence=self._sequence, **message)

    async def _send(self, **message: Any) -> None:
        request = agent_pb2.SessionRequest(session_id=self._session, connection=1, **message)
        request.epoch = self._epoch
        await self._stream.write(request)

    def request(self, rank: int, name: str, generation: int, count: int, size: int) -> bytes:
        """Return the encoded request of a worker."""
        return barrier_pb2.ArriveRequest(
            job_id=self.job_id,
            name=name,
            participant=barrier_pb2.Participant(rank=rank),
            expected=barrier_pb2.Expected(count=count),
            payload=bytes(size),
            request_id=f"{rank}-{generation}",
        ).SerializeToString()

    def arrive(self, rank: int, request: bytes, timeout_s: float = LIMIT_S) -> Any:
        """Begin to arrive."""
        call = self._calls[rank % CHANNELS]
        return call(request, timeout=timeout_s, metadata=((KEY, self.token),))

    async def close(self) -> None:
        self._stream.cancel()
        for channel in self._channels:
            await channel.close()


@asynccontextmanager
async def node(workers: int) -> AsyncIterator[tuple[Node, int]]:
    """Run a coordinator and a node; yield the node and the coordinator's pid."""
    command = (sys.executable, str(LIFTED), "--host", "127.0.0.1", "--port", "0")
    async with server(*command, "--log-level", "error") as (port, pid):
        await asyncio.sleep(WINDOW_S)
        one = Node(port, "barriers", workers)
        await one.begin()
        async with asyncio.TaskGroup() as tasks:
            beats = tasks.create_task(one.beat())
            try:
                yield one, pid
            finally:
                beats.cancel()
                await one.close()


async def release(count: int, size: int, repeats: int) -> list[float]:
    """Return how long after the last arrival each worker had its answer, in ms."""
    took_ms: list[float] = []
    async with node(count) as (one, _):
        for generation in range(repeats):
            requests = [
                one.request(rank, "release", generation, count, size) for rank in range(count)
            ]
            calls = [one.arrive(rank, requests[rank]) for rank in range(count - 1)]
            await asyncio.sleep(ARRIVAL_S * (1 + count / 256))  # all but one have arrived
            began_s = time.perf_counter()
            calls.append(one.arrive(count - 1, requests[-1]))
            ends_s = await asyncio.gather(*(_end_of(call) for call in calls))
            took_ms += [(end_s - began_s) * 1000 for end_s in ends_s]
    return took_ms


async def _end_of(call: Any) -> float:
    await call
    return time.perf_counter()


async def rate(count: int) -> tuple[float, float]:
    """Return the barriers of so many workers in a minute, and the coordinator's share of a core."""
    async with node(count) as (one, pid):
        began_s, spent_s, generation = time.perf_counter(), read_cpu_s(pid), 0
        while time.perf_counter() - began_s < LOOP_S:
            calls = [
                one.arrive(rank, one.request(rank, "rate", generation, count, 0))
                for rank in range(count)
            ]
            await asyncio.gather(*calls)
            generation += 1
        took_s = time.perf_counter() - began_s
        return generation * 60 / took_s, (read_cpu_s(pid) - spent_s) / took_s


async def loss(count: int, repeats: int) -> list[float]:
    """Return how long after the report of a failed worker the others had its name, in ms."""
    took_ms: list[float] = []
    for _ in range(repeats):
        async with node(count) as (one, _pid):
            calls = [
                one.arrive(rank, one.request(rank, "loss", 0, count, 0))
                for rank in range(count - 1)
            ]
            await asyncio.sleep(ARRIVAL_S * (1 + count / 256))
            began_s = time.perf_counter()
            await one.fail(count - 1)
            ends = await asyncio.gather(*calls, return_exceptions=True)
            took_ms.append((time.perf_counter() - began_s) * 1000)
            named = f"rank {count - 1} on node n failed"
            assert all(named in str(end) for end in ends)
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
        took_ms += [(end_s - began_s) * 1000 for end_s in ended_s]
    return took_ms


def show(name: str, values: list[float]) -> None:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    median = statistics.median(ordered)
    print(f"| {name} | {median:.1f} | {p99:.1f} | {ordered[-1]:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure barriers.")
    parser.add_argument("--only", choices=["release", "rate", "loss", "torch"])
    parser.add_argument("--repeats", type=int, default=10, help="generations (default: 10)")
    chosen = parser.parse_args()
    wanted = {chosen.only} if chosen.only else {"release", "rate", "loss", "torch"}
    for fact, value in describe_machine().items():
        print(f"- {fact}: {value}")
    print("\n| ms after the last arrival | median | p99 | longest |\n|---|---|---|---|")
    if "release" in wanted:
        took_ms = asyncio.run(release(1_024, 64, chosen.repeats))
        show("1,024 workers, 64 B from each", took_ms)
    if "torch" in wanted:
        for count in (8, 64, 256):
            show(f"{count} workers", asyncio.run(release(count, 0, chosen.repeats)))
            show(f"{count} workers, torch over TCPStore", torch_barrier(count, chosen.repeats))
    if "loss" in wanted:
        show("a worker of 64 has failed: all others know", asyncio.run(loss(64, 5)))
    if "rate" in wanted:
        per_minute, share = asyncio.run(rate(8))
        print(f"\n{per_minute:,.0f} barriers of 8 workers a minute, {share:.0%} of a core")


if __name__ == "__main__":
    main()
