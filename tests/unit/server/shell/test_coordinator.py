"""The coordinator's shell: what was asked is answered when what it changed is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rallypoint.server.api.nodes import NodeService
from rallypoint.server.contract.pace import Pace
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import EventsLogged, JobNoted
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.shell.clock import JournalClock, wall_ms
from rallypoint.server.shell.coordinator import Coordinator, CoordinatorEnded, InputRefused
from rallypoint.server.shell.listeners import Listeners
from rallypoint.v1 import node_service_pb2 as service_pb2
from support.core.coordinator import Bench
from support.core.fake_agents import JOB
from support.core.shell import running
from support.journal.recording import RecordingJournal

A = NodeName("a")
CORDON = inputs.Cordon(JobId(JOB), A, "bad disk")


class SlowJournal(RecordingJournal):
    """Makes a batch durable when the test lets it, or fails."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.asked = asyncio.Event()
        self.let = asyncio.Event()
        self.fails = False

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        self.asked.set()
        await self.let.wait()
        if self.fails:
            raise JournalFailed("no space left on device")
        await super().append(records, now_ms)


def shell_of(state: State, journal: RecordingJournal) -> Coordinator:
    return Coordinator(state, journal, Listeners(state), JournalClock(), announces=False)


def started() -> tuple[Coordinator, SlowJournal]:
    """Return a coordinator that knows a job with a node, and its journal."""
    bench, journal = Bench(JobSpec(), durable=True), SlowJournal()
    bench.run_round("a")
    bench.state.clocks.measure(0, wall_ms())
    return shell_of(bench.state, journal), journal


def is_cordoned(state: State, now_ms: int) -> bool:
    return any(health.cordoned for health in state.jobs[JobId(JOB)].health)


async def test_answer_comes_when_the_change_is_durable() -> None:
    """Neither the request nor a read beside it is answered before the append has returned."""
    coordinator, journal = started()
    async with running(coordinator), asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(coordinator.ask(CORDON, is_cordoned))
        read = tasks.create_task(coordinator.read(is_cordoned))
        await journal.asked.wait()
        before = [asked.done(), read.done()]
        journal.let.set()
        after = [await asked, await read]
    records = (await journal.load()).records

    assert ([False, False], [True, True]) == (before, after)
    assert [EventsLogged, JobNoted] == [type(record) for record in records]


async def test_failed_append_answers_nobody() -> None:
    """A decision that is not in the journal is not shown; the caller learns that none will be."""
    coordinator, journal = started()
    journal.fails = True
    journal.let.set()
    asked = asyncio.ensure_future(coordinator.ask(CORDON, is_cordoned))  # noqa: TID251  # below
    with pytest.raises(JournalFailed):
        await coordinator.run()
    with pytest.raises(CoordinatorEnded):
        await asked


async def test_refusal_reaches_who_asked() -> None:
    """A refused request raises with the core's refusal and journals nothing."""
    coordinator, journal = started()
    async with running(coordinator):
        with pytest.raises(InputRefused) as caught:
            await coordinator.ask(inputs.Uncordon(JobId("other"), A), is_cordoned)

    assert (RefusalKind.UNKNOWN_JOB, 0) == (caught.value.refusal.kind, journal.length)


async def test_who_asked_may_go_away() -> None:
    """A request whose caller has gone takes effect all the same and breaks nothing."""
    coordinator, journal = started()
    async with running(coordinator), asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(coordinator.ask(CORDON, is_cordoned))
        await journal.asked.wait()
        asked.cancel()
        journal.let.set()

        assert await coordinator.read(is_cordoned)


async def test_node_that_is_asked_to_leave_is_just_leaving() -> None:
    """A drain and the node's own goodbye in one turn: it is answered, and nothing breaks."""
    bench = Bench(JobSpec())
    (a,) = bench.run_round("a")
    coordinator = shell_of(bench.state, RecordingJournal("m"))
    request = service_pb2.DrainNodeRequest(job_id=JOB, node_name="a")
    request.drain_timeout.FromSeconds(60)
    async with asyncio.TaskGroup() as tasks:
        service = NodeService(coordinator, Pace())
        asked = tasks.create_task(service.DrainNode(request, None))  # type: ignore[arg-type]
        await asyncio.sleep(0)  # it is in the inbox
        await coordinator.submit(inputs.Goodbye(a.sender(a.sequence + 1), "done"))
        async with running(coordinator):
            answer = await asked

    assert 0 == answer.time_left.ToMilliseconds()
