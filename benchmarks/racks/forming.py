"""Rounds of agents that share streams, as relays carry them.

The racks are in this process: in a cluster each relay has its own processor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from harness.swarm import Traffic, open_channel
from nodes.forming import PAUSE_S, STEP_S_MAX, Gathering, Times, read_cpu_s
from racks.rack import Rack, RackedAgent


async def form_racks(
    *,
    port: int,
    pid: int,
    nodes: int,
    per_rack: int,
    rounds: int,
    times: Times,
    afterwards: Callable[[], Awaitable[None]],
) -> None:
    """Form a first round of racks of agents and re-form it, as `nodes.forming.form_rounds` does.

    Args:
        port: where the coordinator listens.
        pid: the coordinator's process.
        nodes: how many agents.
        per_rack: how many of them share a stream.
        rounds: how many times the round is re-formed.
        times: gets the results.
        afterwards: called while all agents are still there.
    """
    gathering, traffic = Gathering(nodes), Traffic()
    racks: list[Rack] = []
    for number in range(nodes):
        if number % per_rack == 0:
            racks.append(Rack())
        agent = RackedAgent(number, nodes, traffic, gathering.one, rack=racks[-1])
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
            spent_s, begun = read_cpu_s(pid), time.perf_counter()
            await racks[number % len(racks)].agents[0].fail()
            await gathering.all()
            times.again_ms.append((time.perf_counter() - begun) * 1000)
            times.again_cpu_ms.append((read_cpu_s(pid) - spent_s) * 1000)
        await asyncio.sleep(PAUSE_S)
        await afterwards()
        for task in tasks:
            task.cancel()
    async with asyncio.timeout(STEP_S_MAX):
        await asyncio.gather(*(channel.close() for channel in channels))
