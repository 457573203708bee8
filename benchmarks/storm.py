"""Whether thousands of agents are welcome that all come in the same instant.

    python benchmarks/storm.py --nodes 4096 --restart

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
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from harness.program import Wrong, make_parser, run
from harness.results import Results
from harness.swarm import Gathering, SimulatedAgent, living, open_channel
from harness.trial import Trial
from rallypoint.v1 import agent_service_pb2 as agent_pb2

TABLE = "storm"
STREAMS_PER_CONNECTION = 64
LEASE_MS = 60_000
"""Longer than a busy machine takes to serve all agents."""
STEP_S_MAX = 120.0
"""Longest wait for all channels."""


@dataclass
class Storm:
    """What has become of all agents."""

    nodes: int
    first_ends: dict[str, int] = field(default_factory=dict)
    """How streams ended until the last Welcome, and how many."""
    held: int = 0
    """Agents that hold the first round at the end."""
    ends: dict[str, int] = field(default_factory=dict)
    """How streams ended because it was killed, and how many; an agent may try several times."""

    def judge(self) -> list[str]:
        """Return what is wrong: an agent was not welcome at its first try, or a round was lost."""
        wrong = [f"{count} streams ended: {why}" for why, count in self.first_ends.items()]
        wrong += [f"{count}: {why}" for why, count in self.ends.items() if why == "CANCELLED"]
        if self.held != self.nodes:
            wrong.append(f"{self.held} of {self.nodes} hold the first round")
        return wrong


class Newcomer(SimulatedAgent):
    """An agent whose Hello counts when it was written."""

    on_hello: Callable[[], None]

    async def _write(self, message: agent_pb2.SessionRequest) -> None:
        await super()._write(message)
        if message.HasField("hello"):
            self.on_hello()


async def measure(arguments: argparse.Namespace, results: Results) -> Wrong:
    """Let all agents come at once, and on request again when the coordinator was killed."""
    nodes, ends = arguments.nodes, Counter[str]()
    row, storm = f"{nodes:,} agents", Storm(arguments.nodes)
    opened, runs = Gathering(nodes, "have opened a stream"), Gathering(nodes)
    welcomes = Gathering(nodes, "are welcome")

    def note(_number: int, why: str) -> None:
        ends[why.partition(":")[0]] += 1

    def since(began_s: float, column: str) -> None:
        results.add(TABLE, row, column, "s", time.perf_counter() - began_s)

    agents = [
        Newcomer(
            *(number, nodes, runs.one),
            lease_ms=LEASE_MS,
            on_welcome=welcomes.one,
            on_break=note,
        )
        for number in range(nodes)
    ]
    with Trial() as trial:
        flags = ("--log-level=error", f"--state=sqlite:{trial.folder / 'journal'}")
        process, target = await asyncio.to_thread(trial.start_coordinator, *flags)
        channels = [open_channel(target) for _ in range(-(-nodes // STREAMS_PER_CONNECTION))]
        async with asyncio.timeout(STEP_S_MAX):
            await asyncio.gather(*(channel.channel_ready() for channel in channels))
        for agent in agents:
            agent.on_hello = opened.one
        process.popen.send_signal(signal.SIGSTOP)
        began_s = time.perf_counter()
        async with living(agents, channels):
            await opened.all()
            since(began_s, "until all have opened a stream")
            process.popen.send_signal(signal.SIGCONT)
            began_s = time.perf_counter()
            await welcomes.all()
            since(began_s, "from when it saw them to the last Welcome")
            storm.first_ends = dict(ends)
            await runs.all()
            ends.clear()
            if arguments.restart:
                process.popen.kill()
                await asyncio.to_thread(process.popen.wait)
                port = f"--port={target.rpartition(':')[2]}"
                await asyncio.to_thread(trial.start_coordinator, *flags, port)
                began_s = time.perf_counter()
                await welcomes.all()
                since(began_s, "from its restart to the last Welcome")
            storm.ends = dict(ends)
            storm.held = sum(one.round == 1 and one.held is not None for one in agents)
    results.cases.append(asdict(storm))
    return storm.judge()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("Judge whether agents that all come at once are welcome.")
    parser.add_argument("--nodes", type=int, default=4_096)
    parser.add_argument("--restart", action="store_true", help="kill the coordinator meanwhile")
    return parser.parse_args()


if __name__ == "__main__":
    run(measure, parse_arguments())
