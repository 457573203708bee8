"""How the coordinator's cost grows with the number of nodes: rounds, bytes, and doing nothing.

N simulated agents (real gRPC streams, all in this process) form a first round and re-form it after
a failure, against a real coordinator process; in the same run a bare grpc.aio server exchanges the
same number of messages of the same sizes: the floor. Then all agents idle at the interval that the
coordinator sets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from floor_server import METHOD
from launch import describe_machine
from swarm import SimulatedAgent, Traffic, open_channel

STEP_S_MAX = 60.0
"""Longest wait for anything; then the measurement has failed."""
WINDOW_S = 2.6
"""A coordinator that has just started only listens this long."""


@dataclass(slots=True)
class Figures:
    """What was measured for one number of nodes; times in ms."""

    nodes: int
    first_ms: list[float] = field(default_factory=list)
    first_floor_ms: list[float] = field(default_factory=list)
    again_ms: list[float] = field(default_factory=list)
    again_floor_ms: list[float] = field(default_factory=list)
    bytes_per_agent: float = 0.0
    messages_per_agent: float = 0.0
    idle_cpu_percent: float = 0.0
    rss_mb: float = 0.0


class Gathering:
    """Waits until every client has got the same thing."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._count = 0
        self._done = asyncio.Event()

    def one(self) -> None:
        """Note that one client has got it."""
        self._count += 1
        if self._count == self._nodes:
            self._count = 0
            self._done.set()

    async def all(self) -> None:
        """Return when the last one has."""
        async with asyncio.timeout(STEP_S_MAX):
            await self._done.wait()
        self._done.clear()


@asynccontextmanager
async def server(*command: str) -> AsyncIterator[tuple[int, int]]:
    """Run a server that prints its port; yield the port and the pid."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(STEP_S_MAX):
            line = await process.stdout.readline()
        yield int(line.decode().rpartition(":")[2]), process.pid
    finally:
        process.terminate()
        await process.wait()


async def measure_ours(nodes: int, rounds: int, figures: Figures, idle_s: float) -> Traffic:
    """Form a round of simulated agents, re-form it, idle; return the traffic of one re-forming."""
    binary = Path(sys.executable).with_name("coordinator")
    command = (str(binary), "--host", "127.0.0.1", "--port", "0", "--log-level", "error")
    async with server(*command) as (port, pid):
        await asyncio.sleep(WINDOW_S)
        gathering, traffic = Gathering(nodes), Traffic()
        agents = [
            SimulatedAgent(number, nodes, "rounds", traffic, lambda _: gathering.one())
            for number in range(nodes)
        ]
        channels = [open_channel(port) for _ in agents]
        lives = asyncio.TaskGroup()
        async with lives:
            begun = time.perf_counter()
            tasks = [
                lives.create_task(agent.live(channel))
                for agent, channel in zip(agents, channels, strict=True)
            ]
            await gathering.all()
            figures.first_ms.append((time.perf_counter() - begun) * 1000)
            for number in range(rounds):
                await asyncio.sleep(0.5)
                traffic.messages = traffic.bytes = 0
                begun = time.perf_counter()
                await agents[number % nodes].fail()
                await gathering.all()
                figures.again_ms.append((time.perf_counter() - begun) * 1000)
            figures.bytes_per_agent = traffic.bytes / nodes
            figures.messages_per_agent = traffic.messages / nodes
            if idle_s:
                await asyncio.sleep(1.0)
                figures.idle_cpu_percent = await idle_cpu_percent(pid, idle_s)
            figures.rss_mb = read_rss_mb(pid)
            for task in tasks:
                task.cancel()
        for channel in channels:
            await channel.close()
    return traffic


async def measure_floor(nodes: int, rounds: int, figures: Figures, traffic: Traffic) -> None:
    """Exchange as many bytes in the same order with a server that does nothing else."""
    sizes = traffic.sizes
    welcome, run, stop = sizes["welcome"], sizes["desired"], sizes["desired"]
    script = Path(__file__).with_name("floor_server.py")
    command = (sys.executable, str(script), str(nodes), str(welcome), str(run), str(stop))
    async with server(*command) as (port, _):
        gathering = Gathering(nodes)
        calls: list[Any] = []  # the annotations of StreamStreamCall do not cover read and write
        channels = [open_channel(port) for _ in range(nodes)]

        async def client(channel: grpc.aio.Channel) -> None:
            call: Any = channel.stream_stream(METHOD)()
            calls.append(call)
            await call.write(b"H" * sizes["hello"])
            while (message := await call.read()) is not grpc.aio.EOF:
                if message[:1] == b"G":
                    gathering.one()
                    await call.write(b"s" * sizes["started"])
                elif message[:1] == b"S":
                    await call.write(b"R" * sizes["ready"])

        async with asyncio.TaskGroup() as lives:
            begun = time.perf_counter()
            tasks = [lives.create_task(client(channel)) for channel in channels]
            await gathering.all()
            figures.first_floor_ms.append((time.perf_counter() - begun) * 1000)
            for number in range(rounds):
                await asyncio.sleep(0.5)
                begun = time.perf_counter()
                await calls[number % nodes].write(b"!" * sizes["exited"])
                await gathering.all()
                figures.again_floor_ms.append((time.perf_counter() - begun) * 1000)
            for task in tasks:
                task.cancel()
        for channel in channels:
            await channel.close()


async def idle_cpu_percent(pid: int, seconds: float) -> float:
    """Return how much of one core the process used while nothing happened."""
    before, begun = read_cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return 100 * (read_cpu_s(pid) - before) / (time.monotonic() - begun)


def read_cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_rss_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise LookupError("VmRSS")


async def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Measure every size, ours and the floor in turn."""
    found: list[Figures] = []
    for nodes in arguments.nodes:
        figures = Figures(nodes)
        for run in range(arguments.runs):
            idle_s = arguments.idle if run == 0 else 0.0
            traffic = await measure_ours(nodes, arguments.rounds, figures, idle_s)
            await measure_floor(nodes, arguments.rounds, figures, traffic)
        found.append(figures)
        print(f"measured {nodes} nodes", file=sys.stderr, flush=True)
    return found


def spread(values: list[float]) -> str:
    """Return median and range."""
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def render(found: list[Figures]) -> str:
    """Return the table."""
    lines = [
        "| nodes | first round, ms | floor | ratio | round again, ms | floor | ratio "
        "| bytes per agent | messages | idle CPU | RSS |",
        "|---" * 11 + "|",
    ]
    for row in found:
        first, floor = statistics.median(row.first_ms), statistics.median(row.first_floor_ms)
        again, least = statistics.median(row.again_ms), statistics.median(row.again_floor_ms)
        lines.append(
            f"| {row.nodes} | {spread(row.first_ms)} | {spread(row.first_floor_ms)} "
            f"| {first / floor:.2f} | {spread(row.again_ms)} | {spread(row.again_floor_ms)} "
            f"| {again / least:.2f} | {row.bytes_per_agent:.0f} | {row.messages_per_agent:.1f} "
            f"| {row.idle_cpu_percent:.1f} % | {row.rss_mb:.0f} MB |"
        )
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="What rounds cost as the number of nodes grows.")
    sizes = [64, 256, 1024]
    parser.add_argument("--nodes", type=int, nargs="+", default=sizes, help=f"default: {sizes}")
    parser.add_argument("--runs", type=int, default=3, help="pairs of both servers (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="re-formings a run (default: 5)")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of idling (default: 20)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser.parse_args()


async def measure_and_print(arguments: argparse.Namespace) -> None:
    """Measure, then print; in the loop, since closing thousands of channels takes a while."""
    found = await measure(arguments)
    for name, value in describe_machine().items():
        print(f"- {name}: {value}")
    print(f"- command: python {' '.join(sys.argv)}\n")
    print(render(found), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in found], indent=2))


def main() -> int:
    """Measure and print."""
    asyncio.run(measure_and_print(parse_arguments()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
