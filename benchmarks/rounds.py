"""How the coordinator's cost grows with the number of nodes: rounds, traffic, idling.

N simulated agents (real gRPC streams, in processes of up to 1,024) form a first round and re-form
it after a failure, against a real coordinator process. Then the same agents do the same against the
floor: a bare grpc.aio server that exchanges the same number of messages of the same sizes and
decides nothing. With the coordinator they also idle, at the heartbeat interval that it sets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.swarm import SIGNS_OF_LIFE, Traffic
from launch import describe_machine
from nodes.processes import Crowd, agents, raise_file_limit

STEP_S_MAX = 60.0
"""Longest wait for anything before the measurement fails."""
WINDOW_S = 2.6
"""A coordinator that has just started forms no round for this long."""
PAUSE_S = 0.5
"""Pause between two rounds, after which all processes are idle."""
COPIED = ("welcome", "run", "stop", "acknowledgement")
"""Kinds of messages that the floor answers with, in the order of its command line."""


@dataclass(slots=True)
class Times:
    """What rounds cost with one server."""

    first_ms: list[float] = field(default_factory=list)
    """From before the first connection to the last agent's Run."""
    first_cpu_ms: list[float] = field(default_factory=list)
    """CPU time of the server during that."""
    agents_cpu_ms: list[float] = field(default_factory=list)
    """CPU time of the processes of the agents during that."""
    again_ms: list[float] = field(default_factory=list)
    """From before the report of a failure to the last agent's Run."""
    again_cpu_ms: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Figures:
    """What was measured for one number of nodes."""

    nodes: int
    ours: Times = field(default_factory=Times)
    floor: Times = field(default_factory=Times)
    round_bytes: float = 0.0
    """Per agent and re-forming, both directions, without heartbeats."""
    round_messages: float = 0.0
    life_bytes: float = 0.0
    """Per agent and second: heartbeats and their answers."""
    life_messages: float = 0.0
    idle_cpu_percent: float = 0.0
    rss_mb: float = 0.0


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
    marked: bool,
    afterwards: Callable[[Crowd], Awaitable[None]] | None = None,
) -> None:
    """Form a first round of simulated agents and re-form it; the same for every server.

    Args:
        port: where the server listens.
        pid: the server's process.
        nodes: how many agents.
        rounds: how many times the round is re-formed, each after another agent's failure.
        times: gets the results.
        marked: see `SimulatedAgent`.
        afterwards: called while all agents are still there, with the traffic of the last round.
    """
    async with agents(port, nodes, marked=marked) as crowd:
        spent_s, own_s, begun = read_cpu_s(pid), read_all_s(crowd), time.perf_counter()
        crowd.begin()
        await crowd.gather()
        times.first_ms.append((time.perf_counter() - begun) * 1000)
        times.first_cpu_ms.append((read_cpu_s(pid) - spent_s) * 1000)
        times.agents_cpu_ms.append((read_all_s(crowd) - own_s) * 1000)
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


def coordinator_command() -> tuple[str, ...]:
    """Return the command of a coordinator without a journal on the disk."""
    binary = Path(sys.executable).with_name("coordinator")
    return str(binary), "--host", "127.0.0.1", "--port", "0", "--log-level", "error"


async def measure_ours(nodes: int, rounds: int, figures: Figures, idle_s: float) -> Traffic:
    """Let the coordinator form rounds, then idle; return the traffic of one re-forming."""
    samples = Traffic()
    async with server(*coordinator_command()) as (port, pid):

        async def idle(crowd: Crowd) -> None:
            traffic = await crowd.traffic()
            count_round(traffic, nodes, figures)
            while "acknowledgement" not in traffic.samples:  # the floor needs a copy of each kind
                await asyncio.sleep(PAUSE_S)
                traffic = await crowd.traffic()
            samples.samples.update(traffic.samples)
            if idle_s:
                crowd.clear()
                figures.idle_cpu_percent = await idle_cpu_percent(pid, idle_s)
                messages, sizes = signs_of_life(await crowd.traffic())
                figures.life_messages = messages / nodes / idle_s
                figures.life_bytes = sizes / nodes / idle_s
            figures.rss_mb = read_rss_mb(pid)

        await asyncio.sleep(WINDOW_S)
        times = figures.ours
        await form_rounds(port, pid, nodes, rounds, times, marked=False, afterwards=idle)
    return samples


async def measure_floor(nodes: int, rounds: int, figures: Figures, samples: list[bytes]) -> None:
    """Let the floor form rounds with copies of these messages."""
    script = Path(__file__).with_name("harness") / "floor_server.py"
    command = (sys.executable, str(script), str(nodes), *(sample.hex() for sample in samples))
    async with server(*command) as (port, pid):
        await form_rounds(port, pid, nodes, rounds, figures.floor, marked=True)


def signs_of_life(traffic: Traffic) -> tuple[int, int]:
    """Return messages and bytes of heartbeats and their answers."""
    messages = sum(traffic.counts.get(kind, 0) for kind in SIGNS_OF_LIFE)
    return messages, sum(traffic.sizes.get(kind, 0) for kind in SIGNS_OF_LIFE)


def count_round(traffic: Traffic, nodes: int, figures: Figures) -> None:
    """Note the cost of one re-forming, without the heartbeats during it."""
    messages, sizes = signs_of_life(traffic)
    figures.round_messages = (sum(traffic.counts.values()) - messages) / nodes
    figures.round_bytes = (sum(traffic.sizes.values()) - sizes) / nodes


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


def read_all_s(crowd: Crowd) -> float:
    """Return the CPU time of the agents' processes, in seconds."""
    return sum(map(read_cpu_s, crowd.pids))


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
            samples = [traffic.samples[kind] for kind in COPIED]
            await measure_floor(nodes, arguments.rounds, figures, samples)
        found.append(figures)
        print(f"measured {nodes} nodes", file=sys.stderr, flush=True)
    return found


def spread(values: list[float]) -> str:
    """Return median and range."""
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def compare(ours: list[float], floor: list[float]) -> list[str]:
    """Return three cells: ours, the floor, the ratio of the medians."""
    ratio = statistics.median(ours) / statistics.median(floor)
    return [spread(ours), spread(floor), f"{ratio:.2f}"]


def render(found: list[Figures]) -> str:
    """Return the tables: time and processor time beside the floor's, then traffic and idling."""
    lines = [
        "| nodes | first round, ms | floor | ratio | CPU, ms | floor | ratio "
        "| round again, ms | floor | ratio | CPU, ms | floor | ratio |",
        "|---" * 13 + "|",
    ]
    for row in found:
        cells = [
            str(row.nodes),
            *compare(row.ours.first_ms, row.floor.first_ms),
            *compare(row.ours.first_cpu_ms, row.floor.first_cpu_ms),
            *compare(row.ours.again_ms, row.floor.again_ms),
            *compare(row.ours.again_cpu_ms, row.floor.again_cpu_ms),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| nodes | round again: bytes per agent | messages "
        "| heartbeats and answers: bytes per agent and s | messages | idle CPU | RSS |",
        "|---" * 7 + "|",
    ]
    for row in found:
        lines.append(
            f"| {row.nodes} | {row.round_bytes:.0f} | {row.round_messages:.2f} "
            f"| {row.life_bytes:.0f} | {row.life_messages:.2f} "
            f"| {row.idle_cpu_percent:.1f} % | {row.rss_mb:.0f} MB |"
        )
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure what rounds cost as nodes are added.")
    sizes = [64, 256, 1024, 4096]
    parser.add_argument("--nodes", type=int, nargs="+", default=sizes, help=f"default: {sizes}")
    parser.add_argument("--runs", type=int, default=3, help="pairs of both servers (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="re-formings a run (default: 5)")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of idling (default: 20)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser.parse_args()


async def measure_and_print(arguments: argparse.Namespace) -> None:
    """Measure, then print."""
    raise_file_limit(max(arguments.nodes))
    found = await measure(arguments)
    for name, value in describe_machine().items():
        print(f"- {name}: {value}")
    print(f"- command: python {' '.join(sys.argv)}\n")
    print(render(found), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in found], indent=2))


def main() -> None:
    """Measure and print."""
    asyncio.run(measure_and_print(parse_arguments()))


if __name__ == "__main__":
    main()
