"""What encryption and authentication cost: rounds with and without, in pairs.

Simulated agents form the same rounds at three coordinator processes, one after the other, in
changing order: without TLS; with TLS; and with client certificates and tokens. All agents are in
one process, which encrypts for all of them. On real hosts that work is divided.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from harness.swarm import SimulatedAgent, Traffic
from launch import describe_machine
from rallypoint.cli.operator.access.authority import init_authority, issue
from rallypoint.cli.operator.access.tokens import Role, draw_token, to_entry
from rallypoint.wire.access import PLAIN, Access
from rallypoint.wire.channel import client_options
from rallypoint.wire.credentials import Credentials
from rallypoint.wire.resolved import Resolved
from rounds import PAUSE_S, WINDOW_S, Gathering, Times, read_cpu_s, server, spread

COST_MAX = 0.15
"""What a round may cost more with TLS."""
COMMON = ("--host", "127.0.0.1", "--port", "0", "--log-level", "error", "--state", "memory")


class Site:
    """Certificates and a token of all that takes part."""

    def __init__(self, folder: Path) -> None:
        now = datetime.now(UTC)
        self.ca = init_authority(folder / "certs", "benchmark", 1, now).cert
        self.head = issue(folder / "certs", "head", ("127.0.0.1",), 1, now)
        self.node = issue(folder / "certs", "node", (), 1, now)
        self.token = draw_token()
        self.auth = folder / "auth.toml"
        self.auth.touch(0o600)
        self.auth.write_text(to_entry(self.token, "nodes", Role.AGENT, (), None))

    def flags(self, kind: str) -> tuple[str, ...]:
        """Return the coordinator's flags."""
        if kind == "plain":
            return ()
        tls = ("--tls-cert", str(self.head.cert), "--tls-key", str(self.head.key))
        if kind == "TLS":
            return tls
        return (*tls, "--tls-client-ca", str(self.ca), "--auth", str(self.auth))

    def credentials(self, kind: str) -> Credentials:
        """Return those of the agents."""
        if kind == "plain":
            return Credentials(PLAIN)
        if kind == "TLS":
            return Credentials(Access(ca_file=str(self.ca)))
        cert, key = str(self.node.cert), str(self.node.key)
        return Credentials(
            Access(ca_file=str(self.ca), cert_file=cert, key_file=key, token=self.token)
        )


Task = asyncio.Task[None]
KINDS = ("plain", "TLS", "mTLS and tokens")


class Swarm:
    """The agents of one coordinator."""

    def __init__(self, port: int, pid: int, nodes: int, credentials: Credentials) -> None:
        self._pid = pid
        self._gathering = Gathering(nodes)
        self._agents = [
            SimulatedAgent(number, nodes, Traffic(), self._gathering.one, False)
            for number in range(nodes)
        ]
        at = Resolved(f"127.0.0.1:{port}")
        self._channels = [credentials.open_aio_channel(at, client_options()) for _ in self._agents]
        for agent in self._agents:
            agent.metadata = credentials.metadata()
        self._next = 0

    async def first(self, lives: asyncio.TaskGroup) -> tuple[float, float, list[Task]]:
        """Form the first round; return its time and the coordinator's CPU time, in ms."""
        spent_s, begun = read_cpu_s(self._pid), time.perf_counter()
        tasks = [
            lives.create_task(agent.live(channel))
            for agent, channel in zip(self._agents, self._channels, strict=True)
        ]
        await self._gathering.all()
        return *self._cost(spent_s, begun), tasks

    async def again(self) -> tuple[float, float]:
        """Re-form the round after a failure; return the same."""
        spent_s, begun = read_cpu_s(self._pid), time.perf_counter()
        await self._agents[self._next % len(self._agents)].fail()
        self._next += 1
        await self._gathering.all()
        return self._cost(spent_s, begun)

    def _cost(self, spent_s: float, begun: float) -> tuple[float, float]:
        took_ms = (time.perf_counter() - begun) * 1000
        return took_ms, (read_cpu_s(self._pid) - spent_s) * 1000

    async def close(self) -> None:
        """Close the channels."""
        await asyncio.gather(*(channel.close() for channel in self._channels))


async def measure_run(arguments: argparse.Namespace, site: Site, found: dict[str, Times]) -> None:
    """Run the three coordinators at once, and re-form one round after the other, in turn."""
    binary = str(Path(sys.executable).with_name("coordinator"))
    async with AsyncExitStack() as stack:
        swarms: dict[str, Swarm] = {}
        for kind in KINDS:
            port, pid = await stack.enter_async_context(server(binary, *COMMON, *site.flags(kind)))
            swarms[kind] = Swarm(port, pid, arguments.nodes, site.credentials(kind))
        await asyncio.sleep(WINDOW_S)
        async with asyncio.TaskGroup() as lives:
            tasks: list[Task] = []
            for kind, swarm in swarms.items():
                took_ms, cpu_ms, more = await swarm.first(lives)
                tasks += more
                found[kind].first_ms.append(took_ms)
                found[kind].first_cpu_ms.append(cpu_ms)
            for number in range(arguments.rounds):
                turn = number % len(KINDS)
                for kind in (*KINDS[turn:], *KINDS[:turn]):
                    await asyncio.sleep(PAUSE_S)
                    took_ms, cpu_ms = await swarms[kind].again()
                    found[kind].again_ms.append(took_ms)
                    found[kind].again_cpu_ms.append(cpu_ms)
            for task in tasks:
                task.cancel()
        for swarm in swarms.values():
            await swarm.close()


async def measure(arguments: argparse.Namespace, site: Site) -> dict[str, Times]:
    """Measure every kind in each run."""
    found = {kind: Times() for kind in KINDS}
    for run in range(arguments.runs):
        await measure_run(arguments, site, found)
        print(f"run {run + 1} of {arguments.runs}", file=sys.stderr, flush=True)
    return found


def ratio(times: list[float], plain: list[float]) -> float:
    """Return the median of the ratios of neighbours: each pair had the same load around it."""
    return statistics.median(mine / base for mine, base in zip(times, plain, strict=True))


def tenth(times: list[float]) -> float:
    """Return the time that a tenth of all stays below."""
    return sorted(times)[len(times) // 10]


def render(found: dict[str, Times]) -> str:
    """Return the table."""
    lines = [
        "| | first round, ms | ratio | its CPU, ms | ratio "
        "| round again, ms | ratio | fastest tenth, ms | ratio | its CPU, ms | ratio |",
        "|---" * 11 + "|",
    ]
    for kind, times in found.items():
        cells = [kind]
        for name in ("first_ms", "first_cpu_ms", "again_ms", "again_cpu_ms"):
            mine, base = getattr(times, name), getattr(found["plain"], name)
            cells += [spread(mine), f"{ratio(mine, base):.2f}"]
            if name == "again_ms":  # on a busy machine, those that nothing else has disturbed
                cells += [f"{tenth(mine):.0f}", f"{tenth(mine) / tenth(base):.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure what TLS and tokens cost.")
    parser.add_argument("--nodes", type=int, default=256, help="agents (default: 256)")
    parser.add_argument(
        "--runs", type=int, default=3, help="starts of the coordinators (default: 3)"
    )
    parser.add_argument("--rounds", type=int, default=20, help="re-formings a run (default: 20)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser.parse_args()


async def measure_and_print(arguments: argparse.Namespace) -> bool:
    """Measure and print; return whether the cost is below the limit."""
    with tempfile.TemporaryDirectory() as folder:
        found = await measure(arguments, Site(Path(folder)))
    for name, value in describe_machine().items():
        print(f"- {name}: {value}")
    print(f"- command: python {' '.join(sys.argv)}\n")
    print(render(found), flush=True)
    if arguments.json is not None:
        figures = {kind: asdict(times) for kind, times in found.items()}
        arguments.json.write_text(json.dumps(figures, indent=2))
    plain = found["plain"].again_ms
    return all(ratio(times.again_ms, plain) <= 1 + COST_MAX for times in found.values())


def main() -> NoReturn:
    """Measure and print; exit with 1 if TLS costs too much."""
    is_cheap = asyncio.run(measure_and_print(parse_arguments()))
    sys.stdout.flush()
    os._exit(0 if is_cheap else 1)  # as in rounds.py: grpc.aio may hang at the end


if __name__ == "__main__":
    main()
