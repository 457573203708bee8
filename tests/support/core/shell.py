"""A running shell with real outboxes, for tests of what one failing job does to the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rallypoint.server.agents.outbox import Outbox, Outboxes
from rallypoint.server.api.barriers.waits import BarrierWaits
from rallypoint.server.api.events.waits import EventWaits
from rallypoint.server.api.jobs.watchers import Watchers
from rallypoint.server.api.keys.waits import KeyWaits
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Send
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.core.model.desired import Desired
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.shell.clock import JournalClock, wall_ms
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.server.shell.listeners import Listeners
from support.core.fake_agents import identity
from support.journal.recording import RecordingJournal

SPEC = JobSpec(last_call_ms=0)


class FullJournal(RecordingJournal):
    """A journal whose disk can become full."""

    is_full = False

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        if self.is_full:
            raise JournalFailed("no space left on device")
        await super().append(records, now_ms)


class WatchedClock(JournalClock):
    """A clock that says by how much it was held back."""

    @property
    def held_ms(self) -> int:
        """All stalls together."""
        return self._held_ms


class Peer:
    """An agent's connection to the shell: it submits inputs, and keeps its outbox."""

    def __init__(self, shell: Shell, job_id: str, number: int) -> None:
        self.shell = shell
        self.identity = identity(f"n{number}", SPEC, session=number, job_id=job_id)
        self.connection = 0
        self.sequence = 0
        self.run = 0
        """Run that it takes part in; 0 before its first round."""
        self.outbox = Outbox(self.identity.session, 0, JobId(job_id))

    @property
    def desired(self) -> Desired | None:
        """The desired state that waits to be sent."""
        send: Send | None = self.outbox.desired
        return None if send is None else send.desired

    def sender(self, sequence: int = 0) -> inputs.Sender:
        return inputs.Sender(self.identity.session, self.connection, 1, sequence)

    def next_sender(self) -> inputs.Sender:
        self.sequence += 1
        return self.sender(self.sequence)

    async def hello(self, ready: bool = True) -> None:
        """Open a connection."""
        self.connection += 1
        self.outbox = self.shell.outboxes.open(
            self.identity.session, self.connection, self.identity.job_id, SPEC
        )
        await self.shell.coordinator.submit(
            inputs.Hello(
                identity=self.identity,
                connection=self.connection,
                epoch=0,
                run=self.run,
                coordinator_id="",
                coordinator_durable=False,
                acknowledged=self.sequence,
                revision=0,
                held=None,
                ready=inputs.ReadyPort(0, 20_000) if ready else None,
            )
        )

    async def start(self) -> None:
        """Report that the workers of round 1 run."""
        await self.shell.coordinator.submit(inputs.Started(self.next_sender(), 1, (4_000,)))


class Shell:
    """A running coordinator, its journal and its outboxes."""

    def __init__(self) -> None:
        self.journal = FullJournal("c")
        self.state = State("c", 1, first_epoch=1, durable=True)
        self.outboxes = Outboxes()
        self.watchers, self.barriers = Watchers(), BarrierWaits()
        self.listeners = Listeners(
            *(self.state, self.outboxes, self.barriers, KeyWaits(), self.watchers, EventWaits())
        )
        self.clock = WatchedClock()
        self.coordinator = Coordinator(
            self.state, self.journal, self.listeners, self.clock, announces=False
        )
        self.running: asyncio.Task[None] | None = None

    def peer(self, job_id: str, number: int) -> Peer:
        return Peer(self, job_id, number)

    async def join(self, job_id: str, number: int) -> Peer:
        """Return an agent whose round runs."""
        peer = self.peer(job_id, number)
        await peer.hello()
        await peer.start()
        await self.settle()
        peer.run = 1
        return peer

    async def settle(self) -> None:
        """Wait until everything submitted so far has taken effect."""
        async with asyncio.timeout(5):
            await self.coordinator.read(lambda state, now_ms: None)

    async def expire(self, kind: DeadlineKind, subject: str) -> None:
        """Make a deadline due, and wait for the turns that handle it."""
        self.state.deadlines.set((kind, subject), 0)
        await self.settle()
        async with asyncio.timeout(5):
            while self.state.deadlines.get((kind, subject)) == 0:
                await self.settle()

    async def end(self) -> None:
        """End the coordinator."""
        assert self.running is not None
        self.running.cancel()
        await asyncio.wait([self.running])

    def job(self, job_id: str) -> Job | None:
        return self.state.jobs.get(JobId(job_id))


@asynccontextmanager
async def running_shell() -> AsyncIterator[Shell]:
    """Run a shell while the context is open."""
    shell = Shell()
    measured = shell.state.clocks.measure(0, wall_ms())
    await shell.journal.append([EpochRaised(shell.state.epoch), *measured], 0)
    async with asyncio.TaskGroup() as tasks:
        task = shell.running = tasks.create_task(shell.coordinator.run())
        try:
            yield shell
        finally:
            task.cancel()


@asynccontextmanager
async def running(coordinator: Coordinator) -> AsyncIterator[None]:
    """Run a coordinator while the context is open, which ends within a minute."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(coordinator.run())
        try:
            yield
        finally:
            task.cancel()
