"""A node of another job: its heartbeats show how long anything held up the coordinator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from harness.swarm import SimulatedAgent, living, open_channel
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.durations import to_duration

JOB = "witness"
INTERVAL_MS = 500
"""Between two heartbeats, as its job wants it."""
BEATS = 3
"""That it sends in an interval; a coordinator allows four."""
BEAT_S = INTERVAL_MS / 1000 / BEATS
"""Pause between two heartbeats."""


class Witness(SimulatedAgent):
    """It beats, and notes how late each answer is."""

    late_ms: list[float]
    answered: asyncio.Queue[int]
    """Heartbeats that were answered."""

    def hello(self) -> agent_pb2.SessionRequest:
        message = super().hello()
        message.hello.spec.heartbeat_interval.CopyFrom(to_duration(INTERVAL_MS))
        return message

    async def _beat(self) -> None:
        await self.welcomed.wait()
        number = 0
        while True:
            number += 1
            began_s = time.perf_counter()
            beat = agent_pb2.Heartbeat(number=number)
            await self.say(agent_pb2.SessionRequest(heartbeat=beat), numbered=False)
            while await self.answered.get() < number:
                pass
            self.late_ms.append((time.perf_counter() - began_s) * 1000)
            await asyncio.sleep(BEAT_S)

    async def _take(self, message: agent_pb2.SessionResponse) -> None:
        if message.HasField("acknowledgement"):
            self.answered.put_nowait(message.acknowledgement.heartbeat)
        await super()._take(message)

    @contextmanager
    def watch(self) -> Iterator[list[float]]:
        """Yield the lateness of the answers while the context is open, complete at its end."""
        first, found = len(self.late_ms), list[float]()
        yield found
        found += self.late_ms[first:]


@asynccontextmanager
async def witness(
    target: str, metadata: tuple[tuple[str, str], ...] = ()
) -> AsyncIterator[Witness]:
    """Let a witness beat while the context is open.

    Args:
        target: of the coordinator.
        metadata: of its stream: its token, if it needs one.
    """
    one = Witness(0, 1, lambda: None, job_id=JOB, metadata=metadata)
    one.late_ms, one.answered = [], asyncio.Queue()
    async with living([one], [open_channel(target)]):
        yield one
