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
from support.journal.recording import RecordingJournal

A = NodeName("a")


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


def started() -> tuple[Coordinator, SlowJournal]:
    """Return a coordinator that knows a job with a node, and its journal."""
    bench = Bench(JobSpec(), durable=True)
    bench.run_round("a")
    bench.state.clocks.measure(0, wall_ms())
    journal = SlowJournal()
    return Coordinator(
        bench.state, journal, Listeners(bench.state), JournalClock(), announces=False
    ), journal


def _coordinator(bench: Bench, journal: RecordingJournal) -> Coordinator:
    listeners = Listeners(bench.state)
    return Coordinator(bench.state, journal, listeners, JournalClock(), announces=False)


def is_cordoned(state: State, now_ms: int) -> bool:
    return any(health.cordoned for health in state.jobs[JobId(JOB)].health)


def test_answer_comes_when_the_change_is_durable() -> None:
    """Neither the request nor a read beside it is answered before the append has returned."""

    async def play() -> tuple[list[bool], list[bool], Sequence[JournalRecord]]:
        coordinator, journal = started()
        async with asyncio.TaskGroup() as tasks:
            shell = tasks.create_task(coordinator.run())
            said = inputs.Cordon(JobId(JOB), A, "bad disk")
            asked = tasks.create_task(coordinator.ask(said, is_cordoned))
            read = tasks.create_task(coordinator.read(is_cordoned))
            await journal.asked.wait()
            before = [asked.done(), read.done()]
            journal.let.set()
            after = [await asked, await read]
            shell.cancel()
        return before, after, (await journal.load()).records

    before, after, records = asyncio.run(play())

    assert ([False, False], [True, True]) == (before, after)
    assert [EventsLogged, JobNoted] == [type(record) for record in records]


def test_failed_append_answers_nobody() -> None:
    """A decision that is not in the journal is not shown; the caller learns that none will be."""

    async def play() -> None:
        coordinator, journal = started()
        journal.fails = True
        journal.let.set()
        said = inputs.Cordon(JobId(JOB), A, "bad disk")
        asked = asyncio.ensure_future(coordinator.ask(said, is_cordoned))  # noqa: TID251  # below
        with pytest.raises(JournalFailed):
            await coordinator.run()
        with pytest.raises(CoordinatorEnded):
            await asked

    asyncio.run(play())


def test_refusal_reaches_who_asked() -> None:
    """A refused request raises with the core's refusal and journals nothing."""

    async def play() -> tuple[InputRefused, int]:
        coordinator, journal = started()
        async with asyncio.TaskGroup() as tasks:
            shell = tasks.create_task(coordinator.run())
            with pytest.raises(InputRefused) as caught:
                await coordinator.ask(inputs.Uncordon(JobId("other"), A), is_cordoned)
            shell.cancel()
        return caught.value, journal.length

    refused, length = asyncio.run(play())

    assert (RefusalKind.UNKNOWN_JOB, 0) == (refused.refusal.kind, length)


def test_who_asked_may_go_away() -> None:
    """A request whose caller has gone takes effect all the same and breaks nothing."""

    async def play() -> bool:
        coordinator, journal = started()
        async with asyncio.TaskGroup() as tasks:
            shell = tasks.create_task(coordinator.run())
            said = inputs.Cordon(JobId(JOB), A, "bad disk")
            asked = tasks.create_task(coordinator.ask(said, is_cordoned))
            await journal.asked.wait()
            asked.cancel()
            journal.let.set()
            found = await coordinator.read(is_cordoned)
            shell.cancel()
        return found

    assert asyncio.run(play())


def test_node_that_is_asked_to_leave_is_just_leaving() -> None:
    """A drain and the node's own goodbye in one turn: it is answered, and nothing breaks."""

    async def play() -> service_pb2.DrainNodeResponse:
        bench = Bench(JobSpec())
        (a,) = bench.run_round("a")
        coordinator = Coordinator(
            bench.state,
            RecordingJournal("m"),
            Listeners(bench.state),
            JournalClock(),
            announces=False,
        )
        service = NodeService(coordinator, Pace())
        async with asyncio.TaskGroup() as tasks:
            request = service_pb2.DrainNodeRequest(job_id=JOB, node_name="a")
            request.drain_timeout.FromSeconds(60)
            asked = tasks.create_task(service.DrainNode(request, None))  # type: ignore[arg-type]
            await asyncio.sleep(0)  # it is in the inbox
            await coordinator.submit(inputs.Goodbye(a.sender(a.sequence + 1), "done"))
            shell = tasks.create_task(coordinator.run())
            answer = await asked
            shell.cancel()
        return answer

    assert 0 == asyncio.run(play()).time_left.ToMilliseconds()
