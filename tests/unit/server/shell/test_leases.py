"""When a lease begins: a heartbeat starts no turn, and counts from its arrival."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.memory import MemoryJournal
from rallypoint.server.shell.clock import JournalClock
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.server.shell.listeners import Listeners
from support.core.fake_agents import identity

WHO = identity("a", JobSpec())
SENDER = inputs.Sender(WHO.session, connection=1, epoch=1, sequence=0)
LEASE_MS = 5_000


class FakeClock(JournalClock):
    """A clock that only the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def hold_back(self, stalled_ms: int) -> None:
        self.ms -= stalled_ms


class Shell:
    """A running coordinator with one agent, which sent its Hello at 0 ms."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._state = State("c", 1)
        self.coordinator = Coordinator(
            self._state,
            MemoryJournal("c"),
            Listeners(self._state),
            self.clock,
            announces=False,
        )

    async def lease_ends_ms(self) -> int | None:
        """Have a turn taken, and return when the agent's lease ends."""
        key = (DeadlineKind.LEASE, WHO.session)
        return await self.coordinator.read(lambda state, now_ms: state.deadlines.get(key))


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    shell = Shell()
    running = asyncio.ensure_future(shell.coordinator.run())  # noqa: TID251  # ended below
    hello = inputs.Hello(
        identity=WHO,
        connection=1,
        epoch=0,
        run=0,
        coordinator_id="",
        coordinator_durable=False,
        acknowledged=0,
        revision=0,
        held=None,
        ready=inputs.ReadyPort(0, 20_000),
    )
    await shell.coordinator.submit(hello)
    assert await shell.lease_ends_ms() == LEASE_MS
    yield shell
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_lease_runs_from_when_the_heartbeat_came(shell: Shell) -> None:
    """A turn that takes it 900 ms later does not make the lease 900 ms longer."""
    shell.clock.ms = 100
    shell.coordinator.hear(inputs.Heartbeat(SENDER))
    shell.clock.ms = 1_000

    assert await shell.lease_ends_ms() == 100 + LEASE_MS


async def test_heartbeat_heard_after_a_stall_counts_from_the_clock_as_held_back(
    shell: Shell,
) -> None:
    """What came while the clock still ran ahead must not last longer than a lease from now."""
    shell.clock.ms = 60_000
    shell.coordinator.hear(inputs.Heartbeat(SENDER))
    ends_ms = await shell.lease_ends_ms()

    assert shell.clock.ms < 60_000
    assert ends_ms == shell.clock.ms + LEASE_MS
