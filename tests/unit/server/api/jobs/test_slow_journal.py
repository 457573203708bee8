"""All readers of a shard wait for its next turn, and for no other shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from msgspec import Struct

from rallypoint.server.api.jobs import answers as answers_module
from rallypoint.server.api.jobs.answers import Answers
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.state.state import State
from rallypoint.server.serving.shard import Shard, ShardSettings, open_shard, share
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from support.core.served import AT_ONCE
from support.journal.recording import RecordingJournal

T = TypeVar("T")
JOBS = ("a", "b", "c")
CONTEXT: Any = SimpleNamespace(invocation_metadata=lambda: (), peer=lambda: "ipv4:127.0.0.1:1")


class GatedJournal(RecordingJournal):
    """A journal whose writes wait while its gate is closed."""

    def __init__(self, identity: str) -> None:
        super().__init__(identity)
        self.gate, self.asked = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        self.asked.set()
        await self.gate.wait()
        await super().append(records, now_ms)


class Served(Struct):
    """A shard with some jobs, and its journal."""

    shard: Shard
    journal: GatedJournal

    @property
    def jobs(self) -> Any:
        return self.shard.services["rallypoint.v1.JobService"]

    @property
    def barriers(self) -> Any:
        return self.shard.services["rallypoint.v1.BarrierService"]

    async def create(self, job_id: str) -> None:
        spec = job_pb2.JobSpec(min_nodes=1, max_nodes=1)
        request = service_pb2.CreateJobRequest(job_id=job_id, spec=spec)
        await self.jobs.CreateJob(request, CONTEXT)

    async def get(self, job_id: str = "a") -> None:
        await self.jobs.GetJob(service_pb2.GetJobRequest(job_id=job_id), CONTEXT)

    async def list(self) -> None:
        await self.jobs.ListJobs(service_pb2.ListJobsRequest(), CONTEXT)

    async def list_barriers(self) -> None:
        await self.barriers.ListBarriers(barrier_pb2.ListBarriersRequest(job_id="a"), CONTEXT)

    async def watch(self) -> None:
        await self.jobs.WatchJob(service_pb2.WatchJobRequest(job_id="a"), CONTEXT)

    async def watch_all(self) -> None:
        await self.jobs.WatchJobs(service_pb2.WatchJobsRequest(), CONTEXT)


@asynccontextmanager
async def two_shards() -> AsyncIterator[tuple[Served, Served, asyncio.TaskGroup]]:
    """Run two shards of one process; the first one waits for its journal in a turn."""
    shared, served = share(), []
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        for number in range(2):
            journal = GatedJournal(f"{number}" * 32)
            settings = ShardSettings(AT_ONCE, announces=False, is_shared=True)
            shard = await open_shard(number, journal, settings, shared)
            served.append(Served(shard, journal))
        running = [tasks.create_task(one.shard.run()) for one in served]
        for one in served:
            for job_id in JOBS:
                await one.create(job_id)
        slow, other = served
        slow.journal.asked.clear()
        slow.journal.gate.clear()
        running.append(tasks.create_task(slow.create("late")))
        await slow.journal.asked.wait()
        async with asyncio.TaskGroup() as readers:
            yield slow, other, readers
            slow.journal.gate.set()
        for task in running:
            task.cancel()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[Coordinator]:
    """The coordinators whose next turn readers wait for, as they begin to."""
    begun: asyncio.Queue[Coordinator] = asyncio.Queue()
    real_read = Coordinator.read

    async def read(self: Coordinator, answer: Callable[[State, int], T]) -> T:
        begun.put_nowait(self)
        return await real_read(self, answer)

    monkeypatch.setattr(Coordinator, "read", read)
    return begun


READERS = [Served.get, Served.list, Served.list_barriers, Served.watch, Served.watch_all]


@pytest.mark.parametrize("read", READERS)
async def test_slow_shard_holds_up_no_other(
    read: Callable[[Served], Any], begun: asyncio.Queue[Coordinator]
) -> None:
    """Answers of the others are built, however many read from it while its journal is slow."""
    async with two_shards() as (slow, other, readers):
        reader = readers.create_task(read(slow))
        await begun.get()
        await other.get()
        await other.list()
        await other.list_barriers()

        assert not reader.done()
        reader.cancel()


async def test_answers_about_several_jobs_come_from_one_turn(
    begun: asyncio.Queue[Coordinator],
) -> None:
    """Each reader waits for the next turn, not for the answers before its own."""
    async with two_shards() as (slow, _, readers):
        for job_id in JOBS:
            readers.create_task(slow.get(job_id))

        for _ in JOBS:
            await begun.get()


async def test_calls_share_an_error() -> None:
    """An answer that cannot be built costs as much as one that can, however many ask for it."""
    built, answers = 0, Answers()

    async def build(close: Callable[[], None]) -> bytes:
        nonlocal built
        built += 1
        await asyncio.sleep(0)
        raise LookupError

    calls = (answers.get("job", build) for _ in range(100))
    found = await asyncio.gather(*calls, return_exceptions=True)

    assert all(isinstance(one, LookupError) for one in found)
    assert 1 == built


async def test_call_that_is_cancelled_fails_no_other() -> None:
    """Another one builds the answer in its place."""
    answers, building = Answers(), asyncio.Event()

    async def wait(close: Callable[[], None]) -> bytes:
        building.set()
        await asyncio.Event().wait()
        return b""

    async def build(close: Callable[[], None]) -> bytes:
        return b"built"

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(answers.get("job", wait))
        await building.wait()
        second = tasks.create_task(answers.get("job", build))
        first.cancel()

        assert b"built" == await second


async def test_large_answer_rests_before_it_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls of the rest share the next one; a small answer is built at once."""
    monkeypatch.setattr(answers_module, "BYTES_PER_S_MAX", 1_000_000)
    monkeypatch.setattr(answers_module, "LARGE_BYTES", 100_000)
    answers, clock, begun = Answers(), asyncio.get_running_loop().time, dict[str, list[float]]()

    def building(size: int) -> Callable[[Callable[[], None]], Awaitable[bytes]]:
        async def build(close: Callable[[], None]) -> bytes:
            begun.setdefault(f"{size}", []).append(clock())
            close()
            return bytes(size)

        return build

    await answers.get("large", building(100_000))
    await asyncio.gather(*(answers.get("large", building(100_000)) for _ in range(100)))
    for _ in range(100):
        await answers.get("small", building(99_999))

    first_s, second_s = begun["100000"]
    assert second_s - first_s >= 0.1
    assert 100 == len(begun["99999"])


async def test_call_that_is_cancelled_in_a_rest_fails_no_other() -> None:
    """Another one builds the answer in its place."""
    answers, size = Answers(), answers_module.LARGE_BYTES

    async def build(close: Callable[[], None]) -> bytes:
        close()
        return bytes(size)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        await answers.get("job", build)
        first = tasks.create_task(answers.get("job", build))
        second = tasks.create_task(answers.get("job", build))
        await asyncio.sleep(0)
        first.cancel()

        assert size == len(await second)
