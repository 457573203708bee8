"""Simulated agents in processes apart from the one that measures."""

from __future__ import annotations

import asyncio
import resource
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

SCRIPT = Path(__file__).with_name("process.py")
AGENTS_MAX = 1_024
"""Agents of one process: with 4,096 grpc.aio answers pings so late that servers end connections."""
STEP_S_MAX = 120.0
"""Longest wait for anything before the measurement fails."""
FILES_BESIDE = 256
"""Open files of a process beside one for each connection."""


class Crowd:
    """All agents of one job."""

    def __init__(self, processes: list[Process]) -> None:
        """Command these processes."""
        self._processes = processes

    async def begin(self) -> None:
        """Connect all agents."""
        for process in self._processes:
            self._send(process, b"begin\n")

    async def fail(self, number: int) -> None:
        """Let an agent of another process report a failed worker for each `number` in a row."""
        self._send(self._processes[number % len(self._processes)], b"fail\n")

    async def gather(self) -> None:
        """Return when every agent has received the next Run."""
        await self._expect("run")

    async def await_ready(self) -> None:
        """Return when every process has made its agents."""
        await self._expect("ready")

    async def _expect(self, word: str) -> None:
        lines = await asyncio.gather(*map(self._read, self._processes))
        if any(line != word for line in lines):
            raise RuntimeError(f"not every process has printed {word!r}: {lines}")

    async def _read(self, process: Process) -> str:
        assert process.stdout is not None
        async with asyncio.timeout(STEP_S_MAX):
            line = await process.stdout.readline()
        return line.decode().strip()

    @staticmethod
    def _send(process: Process, command: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(command)


@asynccontextmanager
async def agents(target: str, nodes: int) -> AsyncIterator[Crowd]:
    """Make `nodes` agents, not connected yet, for a server; end them afterwards."""
    processes: list[Process] = []
    count = -(-nodes // AGENTS_MAX)
    try:
        for number in range(count):
            first, end = nodes * number // count, nodes * (number + 1) // count
            numbers = map(str, (first, end - first, nodes))
            processes.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, str(SCRIPT), target, *numbers), stdin=PIPE, stdout=PIPE
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
