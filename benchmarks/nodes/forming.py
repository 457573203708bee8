"""Rounds of simulated agents at a server, and what the server needs for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nodes.processes import Crowd, agents

STEP_S_MAX = 60.0
"""Longest wait for anything before the measurement fails."""
WINDOW_S = 2.6
"""A coordinator that has just started forms no round for this long."""
PAUSE_S = 0.5
"""Pause between two rounds, after which all processes are idle."""


@dataclass(slots=True)
class Times:
    """What rounds cost with one server."""

    first_ms: list[float] = field(default_factory=list)
    """From before the first connection to the last agent's Run."""
    first_cpu_ms: list[float] = field(default_factory=list)
    """CPU time of the server during that."""
    again_ms: list[float] = field(default_factory=list)
    """From before the report of a failure to the last agent's Run."""
    again_cpu_ms: list[float] = field(default_factory=list)


class Gathering:
    """Waits until every client has received the same thing."""

    def __init__(self, nodes: int, limit_s: float = STEP_S_MAX) -> None:
        self._nodes = nodes
        self._limit_s = limit_s
        self._count = 0
        self._done = asyncio.Event()

    def one(self) -> None:
        """Note that one client has received it."""
        self._count += 1
        if self._count == self._nodes:
            self._count = 0
            self._done.set()

    async def all(self) -> None:
        """Return when the last one has."""
        async with asyncio.timeout(self._limit_s):
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
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(STEP_S_MAX):
            await process.wait()


async def form_rounds(
    port: int,
    pid: int,
    nodes: int,
    rounds: int,
    times: Times,
    *,
    afterwards: Callable[[Crowd], Awaitable[None]] | None = None,
) -> None:
    """Form a first round of simulated agents and re-form it; the same for every server.

    Args:
        port: where the server listens.
        pid: the server's process.
        nodes: how many agents.
        rounds: how many times the round is re-formed, each after another agent's failure.
        times: gets the results.
        afterwards: called while all agents are still there, with the traffic of the last round.
    """
    async with agents(port, nodes) as crowd:
        spent_s, begun = read_cpu_s(pid), time.perf_counter()
        crowd.begin()
        await crowd.gather()
        times.first_ms.append((time.perf_counter() - begun) * 1000)
        times.first_cpu_ms.append((read_cpu_s(pid) - spent_s) * 1000)
        for number in range(rounds):
            await asyncio.sleep(PAUSE_S)
            crowd.clear()
            spent_s, begun = read_cpu_s(pid), time.perf_counter()
            crowd.fail(number)
            await crowd.gather()
            times.again_ms.append((time.perf_counter() - begun) * 1000)
            times.again_cpu_ms.append((read_cpu_s(pid) - spent_s) * 1000)
        await asyncio.sleep(PAUSE_S)
        if afterwards is not None:
            await afterwards(crowd)


async def idle_cpu_percent(pid: int, seconds: float) -> float:
    """Return how much of one core the process used while nothing happened."""
    before, begun = read_cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return 100 * (read_cpu_s(pid) - before) / (time.monotonic() - begun)


def read_cpu_s(pid: int) -> float:
    """Return the CPU time of a process, in seconds."""
    spent_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        spent_ns += int((task / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


def read_rss_mb(pid: int) -> float:
    """Return the resident memory of a process in MB (1,000,000 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError("VmRSS")
