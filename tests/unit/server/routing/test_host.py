"""The shards of one process: started, halted and stopped by their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rallypoint.server.coordinator import CoordinatorEnded
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.hosting.host import Halted, Host
from rallypoint.server.hosting.shard import ShardSettings, share
from rallypoint.server.journal.interface import Loaded
from support.core.shell import FullJournal
from support.journal.recording import RecordingJournal

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


def host_of(failed: Callable[[int, str], None]) -> Host:
    settings = ShardSettings(Timing(window_ms=0), announces=False)
    return Host(settings, share(), lambda shard: True, failed)


def unexpected(shard: int, why: str) -> None:
    pytest.fail(f"shard {shard} has failed: {why}")


async def test_shard_that_is_halted_while_it_loads_is_never_served() -> None:
    """Its owner has lost it already; its journal is closed."""
    host, journal = host_of(unexpected), SlowJournal()
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        start = tasks.create_task(_refused(host, journal))
        await journal.asked.wait()
        host.halt(3)
        await host.stop(3)
        journal.may_load.set()
        await start

    assert host.find(3) is None
    assert journal.is_closed


async def _refused(host: Host, journal: SlowJournal) -> None:
    with pytest.raises(Halted):
        await host.start(3, journal)


async def test_shard_is_served_again_after_it_was_stopped() -> None:
    """With what its journal remembers."""
    host, journal = host_of(unexpected), RecordingJournal("5" * 32)
    await host.start(3, journal)
    first = host.find(3)
    host.halt(3)
    assert host.find(3) is None
    await host.stop(3)
    await host.start(3, journal)
    again = host.find(3)
    await host.stop_all()

    assert first is not None and again is not None and again.state.epoch > first.state.epoch


async def test_shard_whose_journal_fails_halts_and_its_owner_learns_it() -> None:
    """The other shards of the process are served as before."""
    failed = asyncio.Queue[tuple[int, str]]()
    host = host_of(lambda shard, why: failed.put_nowait((shard, why)))
    journal = FullJournal("5" * 32)
    await host.start(3, journal)
    await host.start(4, RecordingJournal("5" * 32))
    shard = host.find(3)
    assert shard is not None
    journal.is_full = True
    service = shard.services["rallypoint.v1.JobService"]
    create = inputs.CreateJob(JobId("job"), JobSpec())
    with pytest.raises(CoordinatorEnded):
        await service._coordinator.ask(create, lambda state, now_ms: None)
    async with asyncio.timeout(LIMIT_S):
        assert await failed.get() == (3, "no space left on device")

    assert host.find(3) is None and host.find(4) is not None
    await host.stop_all()
