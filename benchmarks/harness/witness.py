"""A node of another job: its heartbeats show how long anything held up the coordinator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.swarm import METHOD, SimulatedAgent, Traffic, open_channel
from rallypoint.v1 import agent_service_pb2 as agent_pb2

BEAT_S = 0.1
"""Pause of the witness between two heartbeats."""


class Witness:
    """A node of another job: it beats, and notes how late each answer is."""

    def __init__(self, port: int) -> None:
        self._channel = open_channel(port)
        self._agent = SimulatedAgent(0, 1, Traffic(), lambda: None, job_id="witness")
        self.late_ms: list[float] = []

    async def beat(self) -> None:
        """Beat until cancelled."""
        agent = self._agent
        call: Any = self._channel.stream_stream(
            METHOD,
            request_serializer=agent_pb2.SessionRequest.SerializeToString,
            response_deserializer=agent_pb2.SessionResponse.FromString,
        )()
        agent.call, agent.connection = call, 1
        await agent.say(agent.hello(), numbered=False)
        agent.epoch = (await call.read()).epoch
        number = 0
        while True:
            number += 1
            began = time.perf_counter()
            beat = agent_pb2.Heartbeat(number=number)
            await agent.say(agent_pb2.SessionRequest(heartbeat=beat), numbered=False)
            while (await call.read()).acknowledgement.heartbeat < number:
                pass
            self.late_ms.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(BEAT_S)

    @contextmanager
    def watch(self) -> Iterator[list[float]]:
        """Yield the lateness of the answers while the context is open, complete at its end."""
        first, found = len(self.late_ms), [0.0]
        yield found
        found += self.late_ms[first:]
