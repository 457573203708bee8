"""A server as a process, rounds of simulated agents there, and what it needs for them."""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from harness.results import Results

STEP_S_MAX = 60.0
"""Longest wait for a server."""
PAUSE_S = 0.5
"""Pause between two rounds, after which all processes are idle."""
FIRST, FIRST_CPU = "first round", "its CPU time"
AGAIN, AGAIN_CPU = "round again", "CPU time of that"
BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    target: str
    pid: int

    def cpu_s(self) -> float:
        """Return its CPU time so far, in seconds."""
        spent_ns = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            spent_ns += int((task / "schedstat").read_text().split()[0])
        return spent_ns / 1e9

    def rss_mb(self) -> float:
        """Return its resident memory in MB (1,000,000 bytes)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise LookupError("VmRSS")

    async def idle_percent(self, seconds: float) -> float:
        """Return how much of one core it used while nothing happened."""
        before_s, begun_s = self.cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        return 100 * (self.cpu_s() - before_s) / (time.monotonic() - begun_s)


@asynccontextmanager
async def server(*command: str, log: IO[bytes] | None = None) -> AsyncIterator[Server]:
    """Run a server that prints its port while the context is open.

    Args:
        command: its command line, without where it listens.
        log: gets its standard error.
    """
    process = await asyncio.create_subprocess_exec(
        *(*command, "--host=127.0.0.1", "--port=0"), stdout=PIPE, stdin=DEVNULL, stderr=log
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(STEP_S_MAX):
            line = await process.stdout.readline()
        yield Server(f"127.0.0.1:{int(line.decode().rpartition(':')[2])}", process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(STEP_S_MAX):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def coordinator(*flags: str, kind: str = "") -> tuple[str, ...]:
    """Return the command of a coordinator that forms rounds at once.

    Args:
        flags: more than that.
        kind: as in `harness/coordinators.py`; empty: as users have it.
    """
    script = str(Path(__file__).parents[1] / "harness" / "coordinators.py")
    program = (sys.executable, script, kind) if kind else (str(BIN / "coordinator"),)
    return (*program, "--log-level=error", "--startup-window=0", *flags)


class Agents(Protocol):
    """All agents of a job."""

    async def begin(self) -> None:
        """Connect all agents."""

    async def fail(self, number: int) -> None:
        """Let another agent report a failed worker for each `number` in a row."""

    async def gather(self) -> None:
        """Return when every agent has received the next Run."""


async def form_rounds(
    agents: Agents, server: Server, rounds: int, results: Results, table: str, row: str
) -> None:
    """Form a first round of simulated agents and re-form it; the same for every server.

    Args:
        agents: that are not connected yet.
        server: what needs CPU time for them.
        rounds: how many times the round is re-formed, each after another agent's failure.
        results: get the times of `row` in `table`.
    """

    async def time_one(act: Callable[[], Awaitable[None]], names: Mapping[str, str]) -> None:
        """Measure from before an act to the last agent's Run."""
        spent_s, begun_s = server.cpu_s(), time.perf_counter()
        await act()
        await agents.gather()
        took_ms = (time.perf_counter() - begun_s) * 1000
        results.add(table, row, names["took"], "ms", took_ms)
        results.add(table, row, names["spent"], "ms", (server.cpu_s() - spent_s) * 1000)

    await time_one(agents.begin, {"took": FIRST, "spent": FIRST_CPU})
    for number in range(rounds):
        await asyncio.sleep(PAUSE_S)
        again = {"took": AGAIN, "spent": AGAIN_CPU}
        await time_one(lambda number=number: agents.fail(number), again)  # type: ignore[misc]
    await asyncio.sleep(PAUSE_S)
