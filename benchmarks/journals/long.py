"""What becomes of the file after very many rounds, and how long a start from it takes."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from dataclasses import dataclass, field

from crashes.lives import Disk
from harness.swarm import SimulatedAgent, Traffic, open_channel
from journals.costs import spread
from journals.stores import Place, Stores, coordinator
from rounds import STEP_S_MAX, Gathering, read_rss_mb

LOOKS = 20
"""How often the file is looked at."""
STARTS = 5


@dataclass(slots=True)
class Long:
    """What became of the file."""

    nodes: int
    rounds: int
    file_mb: list[float] = field(default_factory=list)
    """Size of all files, at each look."""
    rss_mb: list[float] = field(default_factory=list)
    round_ms: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    """From the start of the process until it listens, with what was written."""
    empty_starts_s: list[float] = field(default_factory=list)
    """The same with nothing, as a comparison."""


async def measure_long(stores: Stores, nodes: int, rounds: int) -> Long:
    """Form very many rounds with SQLite; look at the file, and start from it.

    Args:
        stores: makes the places.
        nodes: of the round.
        rounds: how many times it is re-formed.
    """
    found, place = Long(nodes, rounds), stores.make("sqlite")
    async with coordinator(place) as (port, pid):
        await _form_many(port, pid, found, Disk(place.state))
        os.kill(pid, signal.SIGKILL)
    for _ in range(STARTS):
        found.starts_s.append(await _time_start(place))
        found.empty_starts_s.append(await _time_start(stores.make("sqlite")))
    return found


async def _time_start(place: Place) -> float:
    """Return how long a coordinator takes until it listens."""
    began_s = time.perf_counter()
    async with coordinator(place) as (_, pid):
        took_s = time.perf_counter() - began_s
        os.kill(pid, signal.SIGKILL)
    return took_s


async def _form_many(port: int, pid: int, found: Long, disk: Disk) -> None:
    nodes = found.nodes
    gathering = Gathering(nodes)
    agents = [
        SimulatedAgent(
            number, nodes, Traffic(), gathering.one, marked=False, restarts=found.rounds + 1
        )
        for number in range(nodes)
    ]
    channels = [open_channel(port) for _ in agents]
    async with asyncio.TaskGroup() as lives:
        tasks = [
            lives.create_task(agent.live(channel))
            for agent, channel in zip(agents, channels, strict=True)
        ]
        await gathering.all()
        for number in range(found.rounds):
            began_s = time.perf_counter()
            await agents[number % nodes].fail()
            await gathering.all()
            found.round_ms.append((time.perf_counter() - began_s) * 1000)
            if (number + 1) % max(1, found.rounds // LOOKS) == 0 or number + 1 == found.rounds:
                found.file_mb.append(disk.size() / 1e6)
                found.rss_mb.append(read_rss_mb(pid))
        for task in tasks:
            task.cancel()
    async with asyncio.timeout(STEP_S_MAX):
        await asyncio.gather(*(channel.close() for channel in channels))


def render_long(found: Long) -> str:
    """Return what many rounds have left."""
    tenth = max(1, len(found.round_ms) // 10)
    rows = {
        f"rounds with {found.nodes} nodes": str(found.rounds),
        "a round, ms: the first tenth": spread(found.round_ms[:tenth], 1),
        "the last tenth": spread(found.round_ms[-tenth:], 1),
        "all of them, s": f"{sum(found.round_ms) / 1000:.0f}",
        "files, MB: largest, last": f"{max(found.file_mb):.2f}, {found.file_mb[-1]:.2f}",
        "RSS, MB: first look, last": f"{found.rss_mb[0]:.0f}, {found.rss_mb[-1]:.0f}",
        "start until it listens, s": spread(found.starts_s, 2),
        "the same with an empty journal, s": spread(found.empty_starts_s, 2),
    }
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())]
    )


def median_start_s(found: Long) -> float:
    """Return how long a start from what was written takes."""
    return statistics.median(found.starts_s)
