"""The shards of one process: started, halted and stopped by their owner."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.etcd.claims import Claim
from rallypoint.server.fleet.host import Host
from rallypoint.server.fleet.standing import ShardRefused
from rallypoint.server.journal.interface import Journal, Loaded
from rallypoint.server.serving.shard import ShardSettings, share
from rallypoint.server.shell.coordinator import CoordinatorEnded
from support.core.shell import FullJournal
from support.journal.recording import RecordingJournal
from support.routing.fleet import Seat, Table

LIMIT_S = 10


class SlowJournal(RecordingJournal):
    """A journal that is loaded when a test says so."""

    def __init__(self) -> None:
        super().__init__("5" * 32)
        self.asked, self.may_load = asyncio.Event(), asyncio.Event()
        self.is_closed = False

    async def load(self) -> Loaded:
        self.asked.set()
        await self.may_load.wait()
        return await super().load()

    async def close(self) -> None:
        self.is_closed = True


class Owner(Seat):
    """Owns all shards."""

    def __init__(self) -> None:
        super().__init__(Table())
        self.dropped = asyncio.Queue[tuple[int, str]]()

    def owns(self, shard: int) -> bool:
        return True

    def drop(self, shard: int, why: str) -> None:
        self.dropped.put_nowait((shard, why))


def host_of(journal: Journal, owner: Owner | None = None) -> Host:
    """Return a host; this is the journal of shard 3."""
    settings = ShardSettings(Timing(window_ms=0), announces=False)
    journals = {3: journal, 4: RecordingJournal("5" * 32)}
    return Host(settings, share(), owner or Owner(), lambda claim: journals[claim.shard])


def claim(shard: int = 3) -> Claim:
    return Claim(shard, b"", 0)


async def test_shard_that_is_halted_while_it_loads_is_never_served() -> None:
    """Its owner has lost it already; its journal is closed."""
    journal = SlowJournal()
    host = host_of(journal)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        start = tasks.create_task(_refused(host))
        await journal.asked.wait()
        host.halt(3)
        await host.stop(3)
        journal.may_load.set()
        await start

    assert host.find(3) is None
    assert journal.is_closed


async def _refused(host: Host) -> None:
    with pytest.raises(ShardRefused):
        await host.start(claim())


async def test_shard_is_served_again_after_it_was_stopped() -> None:
    """With what its journal remembers."""
    host = host_of(RecordingJournal("5" * 32))
    await host.start(claim())
    first = host.find(3)
    host.halt(3)
    assert host.find(3) is None
    await host.stop(3)
    await host.start(claim())
    again = host.find(3)
    await host.stop_all()

    assert first is not None and again is not None and again.state.epoch > first.state.epoch


async def test_shard_whose_journal_fails_halts_and_its_owner_learns_it() -> None:
    """The other shards of the process are served as before."""
    owner, journal = Owner(), FullJournal("5" * 32)
    host = host_of(journal, owner)
    await host.start(claim())
    await host.start(claim(4))
    shard = host.find(3)
    assert shard is not None
    journal.is_full = True
    service = shard.services["rallypoint.v1.JobService"]
    create = inputs.CreateJob(JobId("job"), JobSpec())
    with pytest.raises(CoordinatorEnded):
        await service._coordinator.ask(create, lambda state, now_ms: None)
    async with asyncio.timeout(LIMIT_S):
        assert await owner.dropped.get() == (3, "no space left on device")

    assert host.find(3) is None and host.find(4) is not None
    await host.stop_all()
