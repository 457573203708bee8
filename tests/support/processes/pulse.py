"""A coordinator in the test's own process that notes when it hears each agent's heart beat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from rallypoint.server.coordinator import Coordinator
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.serve import Settings, serving
from support.processes.feed import LIMIT_S

INTERVAL_S = 0.2
LEASE_S = 6.0
"""Ample for a busy machine; an agent that stands still for longer is lost."""


class Pulse:
    """The heartbeats of all agents of one coordinator."""

    def __init__(self) -> None:
        self.target = ""
        """host:port of the coordinator."""
        self._beats_s: list[float] = []
        self._came = asyncio.Event()

    def note(self) -> None:
        self._beats_s.append(time.monotonic())
        self._came.set()

    def count(self) -> int:
        return len(self._beats_s)

    async def wait(self, count: int) -> None:
        """Wait until so many more beats have been heard."""
        wanted = self.count() + count
        async with asyncio.timeout(LIMIT_S):
            while self.count() < wanted:
                self._came.clear()
                await self._came.wait()

    def longest_s(self, since: int) -> float:
        """Return the longest time between two beats, from the given one on."""
        return max(b - a for a, b in pairwise(self._beats_s[since:]))


@asynccontextmanager
async def hearing(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pulse]:
    """Serve such a coordinator while the context is open."""
    pulse = Pulse()
    hear = Coordinator.hear

    def note(self: Coordinator, heartbeat: inputs.Heartbeat) -> None:
        pulse.note()
        hear(self, heartbeat)

    monkeypatch.setattr(Coordinator, "hear", note)
    timing = Timing(
        heartbeat_ms=round(INTERVAL_S * 1000), lease_ms=round(LEASE_S * 1000), window_ms=0
    )
    async with serving(Settings("127.0.0.1", 0, timing)) as running:
        pulse.target = f"127.0.0.1:{running.port}"
        yield pulse
