"""The journal of a durable coordinator in the shells: encoded batches that outlive its process.

A process is killed where it writes: before a batch, half-way, or after it. Then nothing of its code
runs any more, as after any other kill. Everything here is drawn from a separate generator, so the
other choices of a seed stay as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.codec.batches import decode_batch, encode_batch
from rallypoint.server.journal.interface import JournalFailed, Loaded
from sim.durable.disk import IDENTITY, SECRET
from sim.seeds.faults import DiskFault
from sim.shells.loop import Loop, VirtualTime
from sim.shells.plan import LASTS_S, Fault

if TYPE_CHECKING:
    from sim.shells.world import World

DURABLE_SHARE = 0.5
"""Of the seeds."""
ACTIVE_SHARE = 0.7
"""Of these: those in which writes meet faults."""
PAUSE_S = 2.5
"""Average time between two faults."""
KINDS = tuple(fault for fault in DiskFault if fault is not DiskFault.SLOW_LOSS)
"""What a write may meet; which records it holds makes no difference here."""
SLOW_S_MAX = 3.0
DOWN_S_MAX = 3.0


class Disk:
    """The bytes, and the fault that the next write meets."""

    def __init__(self, world: World, seed: int, wanted: bool | None) -> None:
        self.world = world
        self.rng = Random(f"{seed} disk")
        drawn = self.rng.random() < DURABLE_SHARE
        self.is_durable = drawn if wanted is None else wanted
        kinds = tuple(fault for fault in KINDS if self.rng.random() < 0.5)
        self.kinds = kinds if self.is_durable and self.rng.random() < ACTIVE_SHARE else ()
        self.batches: list[bytes] = []
        self._armed: DiskFault | None = None

    def begin(self) -> None:
        """Make the next fault due."""
        if self.kinds:
            self.world.schedule.after(self.rng.expovariate(1 / PAUSE_S), self._arm)

    def _arm(self) -> None:
        if not self.world.is_calm:
            self._armed = self.rng.choice(self.kinds)
            self.begin()

    def take(self, *wanted: DiskFault) -> DiskFault | None:
        """Return the fault that a write meets, if it is one of these; it is over then."""
        fault = None if self.world.is_calm else self._armed
        if fault not in wanted:
            return None
        self._armed = None
        assert fault is not None
        self.world.note("disk", fault.value)
        lasts_s = LASTS_S[Fault.STALL if fault is DiskFault.SLOW else Fault.CRASH]
        for job in self.world.jobs:
            self.world.rules.disturbed(job.job_id, lasts_s)
        return fault

    async def crash(self) -> None:
        """Kill the process that writes; it never gets any further."""
        world = self.world
        world.kill_coordinator(resets=True)
        self.restart_later()
        await asyncio.get_running_loop().create_future()

    def restart_later(self) -> None:
        """Start another process after a while."""
        delay_s = self.rng.uniform(0.1, DOWN_S_MAX)
        self.world.schedule.after(delay_s, self.world.restart_coordinator)


class DiskJournal:
    """What one process sees of its disk."""

    is_durable = True
    identity = IDENTITY
    secret = SECRET

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._loaded_ms: int | None = None
        """Journal time of the latest batch of the process before, until this one writes."""
        self.length = 0

    @property
    def size(self) -> int:
        return sum(map(len, self._disk.batches))

    async def load(self) -> Loaded:
        batches = [decode_batch(batch) for batch in self._disk.batches]
        if not batches:
            return Loaded(records=())
        records = [record for batch in batches for record in batch.records]
        self.length, self._loaded_ms = len(records), batches[-1].now_ms
        return Loaded(records, batches[-1].now_ms, batches[-1].unix_ms)

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        disk, batch = self._disk, encode_batch(records, now_ms, _unix_ms())
        if self._loaded_ms is not None:
            disk.world.rules.continued(now_ms - self._loaded_ms)
            self._loaded_ms = None
        await self._rest()
        match disk.take(*DiskFault):
            case DiskFault.CRASH_BEFORE | DiskFault.CRASH_HALFWAY:  # a torn batch is dropped
                await disk.crash()
            case DiskFault.FAIL:
                assert disk.world.coordinator is not None
                disk.world.coordinator.could_not_write = True
                raise JournalFailed("the disk is full: make room, and start the coordinator again")
            case DiskFault.SLOW:
                await asyncio.sleep(disk.rng.uniform(0, SLOW_S_MAX))
            case DiskFault.CRASH_AFTER | DiskFault.CRASH_COMPACTING:
                disk.batches.append(batch)
                await disk.crash()
        disk.batches.append(batch)
        self.length += len(records)
        await self._rest()

    async def compact(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        disk = self._disk
        fault = disk.take(DiskFault.CRASH_COMPACTING)
        if fault is not None and disk.rng.random() < 0.5:
            await disk.crash()
        disk.batches = [encode_batch(records, now_ms, _unix_ms())]
        if fault is not None:
            await disk.crash()
        self.length = len(records)
        await self._rest()

    async def close(self) -> None:
        """Nothing is open."""

    async def _rest(self) -> None:
        """Take a part of the time that the journal takes."""
        loop = _loop()
        if loop.journal_s:
            await asyncio.sleep(loop.rng.choice((0.0, loop.rng.uniform(0, loop.journal_s / 2))))


def _loop() -> Loop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    return loop


def _unix_ms() -> int:
    return VirtualTime(_loop().schedule).time_ns() // 1_000_000
