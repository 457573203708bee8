"""Simulated agents in processes apart from the one that measures."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from harness.swarm import Traffic

SCRIPT = Path(__file__).with_name("process.py")
AGENTS_MAX = 1_024
"""Agents of one process: with 4,096 grpc.aio answers pings so late that servers end connections."""
STEP_S_MAX = 120.0
"""Longest wait for anything before the measurement fails."""
FILES_BESIDE = 256
"""Open files of a process beside one for each connection."""
LINE_BYTES_MAX = 1 << 24
"""Longest line of a process."""


class Crowd:
    """All agents of one job."""

    def __init__(self, processes: list[Process]) -> None:
        """Command these processes."""
        self._processes = processes

    @property
    def pids(self) -> list[int]:
        """Return the pids of the processes."""
        return [process.pid for process in self._processes]

    def begin(self) -> None:
        """Connect all agents."""
        self._command(b"begin\n")

    def fail(self, number: int) -> None:
        """Let an agent of another process report a failed worker for each `number` in a row."""
        self._send(self._processes[number % len(self._processes)], b"fail\n")

    def clear(self) -> None:
        """Count traffic from zero."""
        self._command(b"clear\n")

    async def gather(self) -> None:
        """Return when every agent has received the next Run."""
        await self._expect("run")

    async def await_ready(self) -> None:
        """Return when every process has made its agents."""
        await self._expect("ready")

    async def traffic(self) -> Traffic:
        """Return what all agents have sent and received since `clear`."""
        self._command(b"traffic\n")
        traffic = Traffic()
        for line in await asyncio.gather(*map(self._read, self._processes)):
            found = json.loads(line)
            for kind, count in found["counts"].items():
                traffic.counts[kind] = traffic.counts.get(kind, 0) + count
                traffic.sizes[kind] = traffic.sizes.get(kind, 0) + found["sizes"][kind]
        return traffic

    async def _expect(self, word: str) -> None:
        lines = await asyncio.gather(*map(self._read, self._processes))
        if any(line != word for line in lines):
            raise RuntimeError(f"not every process has printed {word!r}: {lines}")

    async def _read(self, process: Process) -> str:
        assert process.stdout is not None
        async with asyncio.timeout(STEP_S_MAX):
            line = await process.stdout.readline()
        return line.decode().strip()

    def _command(self, command: bytes) -> None:
        for process in self._processes:
            self._send(process, command)

    @staticmethod
    def _send(process: Process, command: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(command)


def agents(port: int, nodes: int) -> AbstractAsyncContextManager[Crowd]:
    """Make `nodes` agents, not connected yet, for the server on `port`; end them afterwards.

    Args:
        port: where the server listens.
        nodes: how many.
    """

    def command(first: int, count: int) -> tuple[str, ...]:
        numbers = map(str, (port, first, count, nodes))
        return sys.executable, str(SCRIPT), *numbers

    return crowd_of(nodes, command)


@asynccontextmanager
async def crowd_of(
    nodes: int, command: Callable[[int, int], tuple[str, ...]]
) -> AsyncIterator[Crowd]:
    """Start processes for `nodes` clients; end them afterwards.

    Args:
        nodes: how many.
        command: returns that of a process, by the number of its first client and their count.
    """
    processes: list[Process] = []
    count = -(-nodes // AGENTS_MAX)
    try:
        for number in range(count):
            first, end = nodes * number // count, nodes * (number + 1) // count
            argv = command(first, end - first)
            processes.append(
                await asyncio.create_subprocess_exec(
                    *argv, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES_MAX
                )
            )
        crowd = Crowd(processes)
        await crowd.await_ready()
        yield crowd
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in processes))


def raise_file_limit(nodes: int) -> None:
    """Let this process and those that it starts have a file for each connection, or exit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = nodes + FILES_BESIDE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        sys.exit(
            f"{nodes} nodes need {wanted} open files, and the limit is {hard}:"
            f" raise it (ulimit -Hn) or use --nodes"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
