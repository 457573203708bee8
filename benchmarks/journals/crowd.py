"""Agents of several jobs, as a separate process: python crowd.py JOBS NODES SECONDS.

JOBS is a JSON object with the port of each job's coordinator. Each job has NODES simulated agents.
Prints "ready" when every job has its first round. For each line on standard input it lets all jobs
re-form their rounds for SECONDS, one round after the other, and prints how long each round took,
in ms, as one JSON list.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field

from harness.swarm import SimulatedAgent, Traffic, open_channel
from rounds import Gathering

RESTARTS = 1_000_000


@dataclass(slots=True)
class Job:
    """A job whose rounds are re-formed."""

    job_id: str
    port: int
    nodes: int
    agents: list[SimulatedAgent] = field(default_factory=list)
    rounds: int = 0
    gathering: Gathering = field(init=False)

    def __post_init__(self) -> None:
        """Wait for all nodes."""
        self.gathering = Gathering(self.nodes)

    async def form(self, tasks: asyncio.TaskGroup) -> None:
        """Connect all agents; return when the first round is there."""
        self.agents = [
            SimulatedAgent(
                number,
                self.nodes,
                Traffic(),
                self.gathering.one,
                marked=False,
                job_id=self.job_id,
                restarts=RESTARTS,
            )
            for number in range(self.nodes)
        ]
        for agent in self.agents:
            tasks.create_task(agent.live(open_channel(self.port)))
        await self.gathering.all()

    async def repeat(self, ends_s: float) -> list[float]:
        """Re-form rounds until `ends_s`; return how long each took, in ms."""
        took_ms = []
        while (began_s := time.perf_counter()) < ends_s:
            await self.agents[self.rounds % self.nodes].fail()
            await self.gathering.all()
            took_ms.append((time.perf_counter() - began_s) * 1000)
            self.rounds += 1
        return took_ms


async def attend(ports: dict[str, int], nodes: int, seconds: float) -> None:
    """Form rounds on request, until standard input ends."""
    jobs = [Job(job_id, port, nodes) for job_id, port in ports.items()]
    async with asyncio.TaskGroup() as tasks:
        await asyncio.gather(*(job.form(tasks) for job in jobs))
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            ends_s = time.perf_counter() + seconds
            found = await asyncio.gather(*(job.repeat(ends_s) for job in jobs))
            print(json.dumps([took_ms for of_job in found for took_ms in of_job]), flush=True)
        sys.stdout.flush()
        os._exit(0)  # the streams end with the process


if __name__ == "__main__":
    asyncio.run(attend(json.loads(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
