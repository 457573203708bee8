"""What the key-value calls of one job cost the failures of another, on one coordinator.

Simulated agents (`harness/swarm.py`) hold a round. One of their workers fails; measured is the time
until the last of them has its next Run. Failures without and with the calls of the other job take
turns. How long heartbeats wait for their answer is measured all the time.

The clients of the calls share the processors with the coordinator and the agents. So the same calls
to another process, the floor, take turns too: they show what the machine itself costs.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import time
from dataclasses import dataclass, field

from harness.swarm import SimulatedAgent, Traffic, open_channel
from harness.trial import MeasurementFailed, Trial
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rounds import Gathering
from stores.clients import BATCH, Op, Target
from stores.load import Crew, Load, Outcome
from stores.systems import start_floor, start_job

CLIENTS = 16
"""Of each of the two kinds of calls."""
SETTLE_S = (0.3, 1.3)
"""Range of the random pause before a failure. One heartbeat wide: all phases are as likely."""
AFTER_S = 0.7
"""How long the calls continue after the latest moment of a failure."""
SHARE_MIN = 0.9
"""If the calls do not reach this part of the wanted rate, there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """The calls of the other job."""

    puts: int
    """Puts of one key a second."""
    batches: int
    """Batches of 16 puts a second."""

    @property
    def changes(self) -> int:
        """Changed keys a second."""
        return self.puts + BATCH * self.batches

    def loads(self, target: Target) -> tuple[Load, Load]:
        """Return the calls during one failure."""
        seconds = SETTLE_S[1] + AFTER_S
        return (
            Load(target, Op.PUT, CLIENTS, seconds, rate=self.puts / CLIENTS),
            Load(target, Op.BATCH, CLIENTS, seconds, CLIENTS, rate=self.batches / CLIENTS),
        )


@dataclass(slots=True)
class Figures:
    """What was measured."""

    alone_ms: list[float] = field(default_factory=list)
    """From before the report of a failure to the last agent's Run."""
    beside_ms: list[float] = field(default_factory=list)
    """The same during the calls."""
    elsewhere_ms: list[float] = field(default_factory=list)
    """The same while the calls go to another process."""
    alone_beats_ms: list[float] = field(default_factory=list)
    """From before a heartbeat is sent to its answer."""
    beside_beats_ms: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    """Changed keys a second, of each series of calls to the coordinator."""
    put_ms: list[float] = field(default_factory=list)
    """How long each put to the coordinator took."""


class TimedAgent(SimulatedAgent):
    """A simulated agent that measures how long its heartbeats wait for an answer."""

    sent: tuple[int, float]
    """The latest heartbeat, and when it was sent."""
    beats_ms: list[float]
    """Gets the results."""

    async def say(self, message: agent_pb2.SessionRequest, *, numbered: bool = True) -> None:
        """Send a message in its envelope."""
        if message.HasField("heartbeat"):
            self.sent = message.heartbeat.number, time.perf_counter()
        await super().say(message, numbered=numbered)

    async def _take(self, message: agent_pb2.SessionResponse) -> None:
        if message.HasField("acknowledgement"):
            number, sent_s = self.sent
            if message.acknowledgement.heartbeat == number:
                self.beats_ms.append((time.perf_counter() - sent_s) * 1000)
        await super()._take(message)


async def measure_isolation(
    crew: Crew, nodes: int, pairs: int, pressure: Pressure, figures: Figures
) -> None:
    """Let workers fail, alone and beside the calls of another job, on a fresh coordinator.

    Raises: MeasurementFailed when there were too few calls.
    """
    with Trial() as trial:
        command = ["coordinator", "--host=127.0.0.1", "--port=0", "--log-level=error"]
        process = trial.start(command, stdout=subprocess.PIPE)
        address = trial.read_address(process)
        target = await asyncio.to_thread(start_job, trial, address)
        floor = (await asyncio.to_thread(start_floor, trial)).target
        gathering = Gathering(nodes)
        agents = [
            TimedAgent(number, nodes, Traffic(), gathering.one, marked=False)
            for number in range(nodes)
        ]
        for agent in agents:
            agent.sent, agent.beats_ms = (0, 0.0), figures.alone_beats_ms
        channels = [open_channel(int(address.rpartition(":")[2])) for _ in agents]
        async with asyncio.TaskGroup() as lives:
            tasks = [
                lives.create_task(agent.live(channel))
                for agent, channel in zip(agents, channels, strict=True)
            ]
            await gathering.all()
            failures = _Failures(crew, agents, gathering, pressure, target, floor, figures)
            for number in range(pairs):
                agent = agents[number % nodes]
                turns = [failures.fail_alone, failures.fail_beside, failures.fail_elsewhere]
                for turn in range(len(turns)):
                    await turns[(number + turn) % len(turns)](agent)
            for task in tasks:
                task.cancel()
        await asyncio.gather(*(channel.close() for channel in channels))
    changes = statistics.median(figures.changes)
    if changes < SHARE_MIN * pressure.changes:
        raise MeasurementFailed(f"only {changes:.0f} changes a second, not {pressure.changes}")


@dataclass(frozen=True, slots=True)
class _Failures:
    """Lets workers of one job fail."""

    crew: Crew
    agents: list[TimedAgent]
    gathering: Gathering
    pressure: Pressure
    target: Target
    floor: Target
    figures: Figures

    async def fail_alone(self, agent: TimedAgent) -> None:
        """Let a worker of this agent fail while nothing else happens."""
        self.figures.alone_ms.append(await self._fail(agent))

    async def fail_beside(self, agent: TimedAgent) -> None:
        """Let a worker of this agent fail during the calls of the other job."""
        figures = self.figures
        took_ms, calls = await self._fail_during(agent, self.target, figures.beside_beats_ms)
        puts, batches = calls
        figures.beside_ms.append(took_ms)
        figures.changes.append(puts.rate + BATCH * batches.rate)
        figures.put_ms.extend(puts.times_ms)

    async def fail_elsewhere(self, agent: TimedAgent) -> None:
        """Let a worker of this agent fail while the calls go to another process."""
        took_ms, _ = await self._fail_during(agent, self.floor, self.figures.alone_beats_ms)
        self.figures.elsewhere_ms.append(took_ms)

    async def _fail_during(
        self, agent: TimedAgent, target: Target, beats_ms: list[float]
    ) -> tuple[float, tuple[Outcome, ...]]:
        """Let it fail during calls; return how long the next round took, in ms, and the calls."""
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def note_begin() -> None:
            loop.call_soon_threadsafe(begun.set)

        def call() -> tuple[Outcome, ...]:
            return self.crew.run(*self.pressure.loads(target), at_begin=note_begin)

        async with asyncio.TaskGroup() as tasks:
            calls = tasks.create_task(asyncio.to_thread(call))
            await begun.wait()
            self._send_beats_to(beats_ms)
            took_ms = await self._fail(agent)
        self._send_beats_to(self.figures.alone_beats_ms)
        return took_ms, calls.result()

    async def _fail(self, agent: TimedAgent) -> float:
        """Let it fail after a random pause; return how long the next round took, in ms."""
        await asyncio.sleep(random.uniform(*SETTLE_S))
        began_s = time.perf_counter()
        await agent.fail()
        await self.gathering.all()
        return (time.perf_counter() - began_s) * 1000

    def _send_beats_to(self, beats_ms: list[float]) -> None:
        for agent in self.agents:
            agent.beats_ms = beats_ms
