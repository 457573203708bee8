"""What relays save: rounds of thousands of nodes, directly and with 64 nodes on one stream.

Simulated agents form a first round and re-form it after a failure, against a real coordinator
process: first each on a separate stream, in processes of up to 1,024, then as racks that share one,
in this process: in a cluster each relay has its own processor. What a real relay adds is measured
beside it, with one rack. The costs of 10,000 nodes are computed from these parts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, it sees only its folder

from harness.swarm import Traffic, open_channel
from launch import describe_machine
from nodes.processes import Crowd, raise_file_limit
from racks.rack import Rack, RackedAgent
from rounds import (
    PAUSE_S,
    STEP_S_MAX,
    WINDOW_S,
    Gathering,
    Times,
    form_rounds,
    idle_cpu_percent,
    read_cpu_s,
    read_rss_mb,
    server,
    spread,
)

LARGE = 10_000
"""Nodes whose costs are computed."""
BIN = Path(sys.executable).parent


@dataclass(slots=True)
class Figures:
    """What was measured for one number of nodes."""

    nodes: int
    direct: Times = field(default_factory=Times)
    relayed: Times = field(default_factory=Times)
    direct_rss_mb: float = 0.0
    relayed_rss_mb: float = 0.0
    direct_idle_percent: float = 0.0
    relayed_idle_percent: float = 0.0
    messages: float = 0.0
    """Between a relay and the coordinator for one re-forming, in both directions."""


@dataclass(slots=True)
class Hop:
    """What one real relay with one rack costs."""

    direct: Times = field(default_factory=Times)
    relayed: Times = field(default_factory=Times)
    relay_cpu_ms: list[float] = field(default_factory=list)
    """CPU time of the relay for the first round and all re-formings."""
    relay_rss_mb: float = 0.0


def coordinator() -> tuple[str, ...]:
    """Return the command of a coordinator without a memory."""
    binary = str(BIN / "coordinator")
    return (binary, "--host", "127.0.0.1", "--port", "0", "--state", "memory", "--log-level=error")


async def form_racks(
    port: int, pid: int, nodes: int, per_rack: int, rounds: int, figures: Figures, idle_s: float
) -> None:
    """Form rounds of agents that share streams."""
    gathering, traffic, times = Gathering(nodes), Traffic(), figures.relayed
    racks: list[Rack] = []
    for number in range(nodes):
        if number % per_rack == 0:
            racks.append(Rack())
        agent = RackedAgent(number, nodes, traffic, gathering.one, marked=False, rack=racks[-1])
        racks[-1].agents.append(agent)
        agent.stream = len(racks[-1].agents)
    channels = [open_channel(port) for _ in racks]
    async with asyncio.TaskGroup() as lives:
        spent_s, begun = read_cpu_s(pid), time.perf_counter()
        tasks = [
            lives.create_task(rack.live(channel))
            for rack, channel in zip(racks, channels, strict=True)
        ]
        await gathering.all()
        times.first_ms.append((time.perf_counter() - begun) * 1000)
        times.first_cpu_ms.append((read_cpu_s(pid) - spent_s) * 1000)
        for number in range(rounds):
            await asyncio.sleep(PAUSE_S)
            before = sum(rack.sent + rack.received for rack in racks)
            spent_s, begun = read_cpu_s(pid), time.perf_counter()
            await racks[number % len(racks)].agents[0].fail()
            await gathering.all()
            times.again_ms.append((time.perf_counter() - begun) * 1000)
            times.again_cpu_ms.append((read_cpu_s(pid) - spent_s) * 1000)
            exchanged = sum(rack.sent + rack.received for rack in racks) - before
            figures.messages = exchanged / len(racks)
        await asyncio.sleep(PAUSE_S)
        if idle_s:
            figures.relayed_idle_percent = await idle_cpu_percent(pid, idle_s)
        figures.relayed_rss_mb = max(figures.relayed_rss_mb, read_rss_mb(pid))
        for task in tasks:
            task.cancel()
    async with asyncio.timeout(STEP_S_MAX):
        await asyncio.gather(*(channel.close() for channel in channels))


async def measure_size(nodes: int, arguments: argparse.Namespace) -> Figures:
    """Measure one number of nodes, directly and with racks in turn."""
    figures = Figures(nodes)
    for run in range(arguments.runs):
        idle_s = arguments.idle if run == 0 else 0.0
        async with server(*coordinator()) as (port, pid):

            async def idle(_: Crowd, pid: int = pid, idle_s: float = idle_s) -> None:
                if idle_s:
                    figures.direct_idle_percent = await idle_cpu_percent(pid, idle_s)
                figures.direct_rss_mb = max(figures.direct_rss_mb, read_rss_mb(pid))

            await asyncio.sleep(WINDOW_S)
            await form_rounds(
                *(port, pid, nodes, arguments.rounds, figures.direct),
                marked=False,
                afterwards=idle,
            )
        async with server(*coordinator()) as (port, pid):
            await asyncio.sleep(WINDOW_S)
            await form_racks(
                port, pid, nodes, arguments.per_relay, arguments.rounds, figures, idle_s
            )
    print(f"measured {nodes} nodes", file=sys.stderr, flush=True)
    return figures


async def measure_hop(nodes: int, runs: int, rounds: int) -> Hop:
    """Measure one rack, directly and through a real relay."""
    hop = Hop()
    for _ in range(runs):
        async with server(*coordinator()) as (port, pid):
            await asyncio.sleep(WINDOW_S)
            await form_rounds(port, pid, nodes, rounds, hop.direct, marked=False)
        async with server(*coordinator()) as (port, _pid):
            relay = (str(BIN / "rallypoint"), "relay", f"--coordinator=127.0.0.1:{port}")
            flags = ("--host=127.0.0.1", "--port=0", "--log-level=error")
            async with server(*relay, *flags) as (relay_port, relay_pid):
                await asyncio.sleep(WINDOW_S)
                spent_s = read_cpu_s(relay_pid)
                await form_rounds(
                    *(relay_port, relay_pid, nodes, rounds, hop.relayed), marked=False
                )
                hop.relay_cpu_ms.append((read_cpu_s(relay_pid) - spent_s) * 1000)
                hop.relay_rss_mb = max(hop.relay_rss_mb, read_rss_mb(relay_pid))
    return hop


def median(values: list[float]) -> float:
    return statistics.median(values)


def render(found: list[Figures], hop: Hop, per_relay: int) -> str:
    """Return the tables."""
    columns = (
        *("nodes", "first round, ms: direct", "relays", "ratio"),
        *("round again, ms: direct", "relays", "ratio"),
        *("coordinator's CPU, first: direct", "relays", "again: direct", "relays"),
        *("idle CPU: direct", "relays", "memory: direct", "relays", "messages per relay and round"),
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in found:
        direct, relayed = row.direct, row.relayed
        cells = [
            str(row.nodes),
            *(spread(direct.first_ms), spread(relayed.first_ms)),
            f"{median(relayed.first_ms) / median(direct.first_ms):.2f}",
            *(spread(direct.again_ms), spread(relayed.again_ms)),
            f"{median(relayed.again_ms) / median(direct.again_ms):.2f}",
            *(spread(direct.first_cpu_ms), spread(relayed.first_cpu_ms)),
            *(spread(direct.again_cpu_ms), spread(relayed.again_cpu_ms)),
            *(f"{row.direct_idle_percent:.1f} %", f"{row.relayed_idle_percent:.1f} %"),
            *(f"{row.direct_rss_mb:.0f} MB", f"{row.relayed_rss_mb:.0f} MB"),
            f"{row.messages:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"| one rack of {per_relay} nodes | directly | through a real relay |",
        "|---|---|---|",
        f"| first round, ms | {spread(hop.direct.first_ms)} | {spread(hop.relayed.first_ms)} |",
        f"| round again, ms | {spread(hop.direct.again_ms)} | {spread(hop.relayed.again_ms)} |",
        f"| CPU of the relay for a round, ms | | {spread(hop.relayed.again_cpu_ms)} |",
        f"| memory of the relay | | {hop.relay_rss_mb:.0f} MB |",
        "",
        *estimate(found[0], found[-1], hop),
    ]
    return "\n".join(lines)


def estimate(smallest: Figures, largest: Figures, hop: Hop) -> list[str]:
    """Return what `LARGE` nodes would cost: the coordinator's part grows with the nodes."""
    scale = LARGE / largest.nodes
    first_ms, again_ms = (
        median(times) * scale
        for times in (largest.relayed.first_cpu_ms, largest.relayed.again_cpu_ms)
    )
    first_hop_ms, again_hop_ms = (
        max(0.0, median(through) - median(direct))
        for through, direct in (
            (hop.relayed.first_ms, hop.direct.first_ms),
            (hop.relayed.again_ms, hop.direct.again_ms),
        )
    )
    more = max(1, largest.nodes - smallest.nodes)
    per_node_mb = max(0.0, largest.relayed_rss_mb - smallest.relayed_rss_mb) / more
    memory_mb = largest.relayed_rss_mb + per_node_mb * (LARGE - largest.nodes)
    return [
        f"Computed for {LARGE:,} nodes: the coordinator's CPU time of {largest.nodes:,} nodes, "
        f"times {scale:.2f}, and what a relay adds to its rack. "
        f"First round {first_ms + first_hop_ms:.0f} ms ({first_ms:.0f} + {first_hop_ms:.0f}), "
        f"again {again_ms + again_hop_ms:.0f} ms ({again_ms:.0f} + {again_hop_ms:.0f}), "
        f"memory {memory_mb:.0f} MB. Agents and network are not in it.",
    ]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure what relays save; about 4 minutes.")
    sizes = [1024, 4096]
    parser.add_argument("--nodes", type=int, nargs="+", default=sizes, help=f"default: {sizes}")
    parser.add_argument("--per-relay", type=int, default=64, help="nodes of a rack (default: 64)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="re-formings a run (default: 5)")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of idling (default: 10)")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser.parse_args()


async def measure_and_print(arguments: argparse.Namespace) -> None:
    """Measure, then print."""
    raise_file_limit(max(arguments.nodes))
    found = [await measure_size(nodes, arguments) for nodes in sorted(arguments.nodes)]
    hop = await measure_hop(arguments.per_relay, arguments.runs, arguments.rounds)
    for name, value in describe_machine().items():
        print(f"- {name}: {value}")
    print(f"- command: python {' '.join(sys.argv)}\n")
    print(render(found, hop, arguments.per_relay), flush=True)
    if arguments.json is not None:
        every = {"sizes": [asdict(row) for row in found], "hop": asdict(hop)}
        arguments.json.write_text(json.dumps(every, indent=2))


def main() -> NoReturn:
    """Measure and print."""
    asyncio.run(measure_and_print(parse_arguments()))
    # Skip the end of the interpreter: closing thousands of channels takes grpc.aio minutes.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
