"""Whether thousands of agents are welcome that all come in the same instant.

    python benchmarks/storm.py [--nodes N] [--restart] [--json FILE]

All agents of a job open their streams while the coordinator stands still (SIGSTOP), so that it
finds all of them at once. Each must be welcome at its first try. With --restart the coordinator is
killed when all have their round, and starts again with its journal on the same port: all agents
must come back, no stream may end as CANCELLED, and the round must still run. Exits with 1
otherwise.

The agents are those of `harness/swarm.py`; 64 of them share a connection, because it is the number
of streams that counts here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from msgspec import Struct, field, to_builtins

from harness.swarm import SimulatedAgent, Traffic, open_channel
from harness.trial import MeasurementFailed, Process, Trial
from rallypoint.v1 import agent_service_pb2 as agent_pb2

STREAMS_PER_CONNECTION = 64
LEASE_MS = 60_000
"""Longer than a busy machine takes to serve all agents."""
STEP_S_MAX = 120.0
"""Longest wait for all agents."""


class Figures(Struct):
    """What was measured."""

    nodes: int
    opened_s: float = 0.0
    """How long the agents took to open their streams; the coordinator finds them at once."""
    welcomed_s: float = 0.0
    """From when the coordinator continued to the last Welcome."""
    first_ends: dict[str, int] = field(default_factory=dict)
    """How streams ended until then, and how many."""
    held: int = 0
    """Agents that hold the first round at the end."""
    returned_s: float | None = None
    """From when the coordinator that started again listened to the last Welcome; None: it was not
    killed."""
    ends: dict[str, int] = field(default_factory=dict)
    """How streams ended because it was killed, and how many; an agent may try several times."""

    @property
    def is_good(self) -> bool:
        """Return whether each agent was welcome at its first try, and no round was lost."""
        cancelled = any(why.startswith("CANCELLED") for why in self.ends)
        return not self.first_ends and not cancelled and self.held == self.nodes


class Count:
    """Counts what happens to agents, until it has happened to all."""

    def __init__(self, nodes: int) -> None:
        """Begin with none."""
        self._nodes = nodes
        self._count = 0
        self._all = asyncio.Event()

    def one(self) -> None:
        """Note one."""
        self._count += 1
        if self._count == self._nodes:
            self._all.set()

    async def all(self, what: str) -> None:
        """Wait for all, and begin again.

        Raises:
            MeasurementFailed: some are missing.
        """
        try:
            async with asyncio.timeout(STEP_S_MAX):
                await self._all.wait()
        except TimeoutError:
            raise MeasurementFailed(f"{what}: {self._count} of {self._nodes}") from None
        self._count = 0
        self._all.clear()


def start_coordinator(trial: Trial, port: int) -> tuple[Process, int]:
    """Start a coordinator with the journal of the trial; return it, and the port it listens on."""
    command = ["coordinator", "--host=127.0.0.1", f"--port={port}", "--log-level=error"]
    process = trial.start(
        [*command, f"--state=sqlite:{trial.folder / 'journal'}"], stdout=subprocess.PIPE
    )
    return process, int(trial.read_address(process).rpartition(":")[2])


class Newcomer(SimulatedAgent):
    """An agent whose Hello counts when it was written."""

    on_hello: Callable[[], None]

    async def _write(self, message: agent_pb2.SessionRequest) -> None:
        await super()._write(message)
        if message.HasField("hello"):
            self.on_hello()


def swarm(
    nodes: int, opened: Count, runs: Count, welcomes: Count, ends: Counter[str]
) -> list[Newcomer]:
    """Return the agents of a job; `ends` counts how their streams end."""

    def note(_number: int, why: str) -> None:
        ends[why.partition(":")[0]] += 1

    def make(number: int) -> Newcomer:
        agent = Newcomer(number, nodes, Traffic(), runs.one, lease_ms=LEASE_MS)
        agent.on_hello, agent.on_welcome, agent.on_break = opened.one, welcomes.one, note
        return agent

    return [make(number) for number in range(nodes)]


async def measure(nodes: int, *, restarts: bool) -> Figures:
    """Let all agents come at once; `restarts`: and again.

    Raises:
        MeasurementFailed: some have not come.
    """
    figures, ends = Figures(nodes), Counter[str]()
    opened, runs, welcomes = Count(nodes), Count(nodes), Count(nodes)
    with Trial() as trial:
        process, port = await asyncio.to_thread(start_coordinator, trial, 0)
        agents = swarm(nodes, opened, runs, welcomes, ends)
        channels = [open_channel(port) for _ in range(-(-nodes // STREAMS_PER_CONNECTION))]
        async with asyncio.timeout(STEP_S_MAX):
            await asyncio.gather(*(channel.channel_ready() for channel in channels))
        async with asyncio.TaskGroup() as tasks:
            process.popen.send_signal(signal.SIGSTOP)
            began_s = time.perf_counter()
            lives = [
                tasks.create_task(agent.live(channels[agent.number % len(channels)]))
                for agent in agents
            ]
            await opened.all("have opened a stream")
            figures.opened_s = time.perf_counter() - began_s
            process.popen.send_signal(signal.SIGCONT)
            began_s = time.perf_counter()
            await welcomes.all("welcome")
            figures.welcomed_s = time.perf_counter() - began_s
            figures.first_ends = dict(ends)
            await runs.all("with a round")
            ends.clear()
            if restarts:
                process.popen.kill()
                await asyncio.to_thread(process.popen.wait)
                await asyncio.to_thread(start_coordinator, trial, port)
                began_s = time.perf_counter()
                await welcomes.all("welcome again")
                figures.returned_s = time.perf_counter() - began_s
            figures.ends = dict(ends)
            figures.held = sum(one.round == 1 and one.held is not None for one in agents)
            for life in lives:
                life.cancel()
    return figures


async def measure_and_exit(nodes: int, *, restarts: bool, json_file: Path | None) -> NoReturn:
    """Measure, say what was found, and end the process within the event loop.

    Closing thousands of streams takes grpc.aio long, and the end of the loop may even wait for ever
    for the thread that polls them.
    """
    try:
        figures = await measure(nodes, restarts=restarts)
    except (MeasurementFailed, TimeoutError, ExceptionGroup):
        traceback.print_exc()
        status = 1
    else:
        show(figures, json_file)
        status = 0 if figures.is_good else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def show(figures: Figures, json_file: Path | None) -> None:
    """Print the figures, and write them to a file."""
    if json_file:
        json_file.write_text(json.dumps(to_builtins(figures)))
    again = (
        "" if figures.returned_s is None else f", and {figures.returned_s:.2f} s after its restart"
    )
    print(
        f"{figures.nodes} agents opened streams within {figures.opened_s:.2f} s; all were welcome"
        f" {figures.welcomed_s:.2f} s after the coordinator saw them{again};"
        f" {figures.held} hold the first round; ends: {figures.first_ends}, {figures.ends}"
    )


def main() -> None:
    """Read the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4_096)
    parser.add_argument("--restart", action="store_true", help="kill the coordinator meanwhile")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    asyncio.run(measure_and_exit(given.nodes, restarts=given.restart, json_file=given.json))


if __name__ == "__main__":
    main()
