"""A round that is suspected to hang is examined once, and the core gets what the evidence says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, cast

import pytest
import structlog
from msgspec.structs import replace

from rallypoint.server.api.evidence import suspicions as module
from rallypoint.server.api.evidence.collecting import Collecting
from rallypoint.server.api.evidence.suspicions import UNANSWERED, Suspicions
from rallypoint.server.core.messages.inputs import Examined
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.round import Hang
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator, CoordinatorEnded
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import evidence_pb2, verdict_pb2
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, FakeAgent

LIMIT_S = 20.0
JOB_ID = JobId(JOB)
HANG = Hang(since_ms=0, suspected_ms=300_000)
T = TypeVar("T")


class Shell:
    """A coordinator's shell that notes what is submitted; its agents answer when `script` says."""

    def __init__(self) -> None:
        self.bench = Bench(JobSpec(min_nodes=2, max_nodes=2))
        self.agents = self.bench.run_round("a", "b", workers=2)
        self.collecting = Collecting(self._ask)
        self.suspicions = Suspicions(self.collecting)
        self.submitted: asyncio.Queue[Examined] = asyncio.Queue()
        self.asked: list[SessionId] = []
        self.can_ask = True
        self.script: Callable[[], None] = self.answer
        self.error: Exception | None = None

    @property
    def state(self) -> State:
        return self.bench.state

    @property
    def round(self) -> int:
        return self.bench.rounds()[-1].number

    def suspect(self, hang: Hang | None = HANG) -> None:
        """Let a turn suspect the round, or withdraw that."""
        job = self.bench.job()
        assert job.round is not None
        self.state.jobs[JOB_ID] = replace(job, round=replace(job.round, hang=hang))
        self.change()

    def change(self) -> None:
        self.suspicions.note_job(JOB_ID, self.state)

    def _ask(self, session: SessionId, request: agent_pb2.CollectEvidence) -> bool:
        self.asked.append(session)
        self.request = request
        if len(self.asked) % len(self.agents) == 0:
            asyncio.get_running_loop().call_soon(self.script)
        return self.can_ask

    def answer(self) -> None:
        """Let every agent say that rank 2 alone has not entered what the others wait in."""
        self.report(*self.agents)

    def report(self, *agents: FakeAgent) -> None:
        for agent in agents:
            assignment = agent.known_node.assignment
            assert assignment is not None
            first = assignment.first_rank
            self.collecting.report(
                *(JOB_ID, agent.session, self.request.evidence_id),
                [_stands(rank) for rank in range(first, first + assignment.local_world_size)],
                has_more=False,
            )

    async def read(self, answer: Callable[[State, int], T]) -> T:
        if self.error is not None:
            raise self.error
        return answer(self.state, self.bench.now_ms)

    async def submit(self, input: Examined) -> None:
        self.submitted.put_nowait(input)

    async def examined(self) -> Examined:
        """Return the next input."""
        async with asyncio.timeout(LIMIT_S):
            return await self.submitted.get()


def _stands(rank: int) -> evidence_pb2.RankEvidence:
    entered = 5 if rank == 2 else 6
    group = evidence_pb2.GroupProgress(
        name="0",
        description="default_pg",
        entered=entered,
        completed=5,
        members=[verdict_pb2.RankRange(first=0, last=3)],
    )
    return evidence_pb2.RankEvidence(rank=rank, pid=1, groups=[group])


@asynccontextmanager
async def examining(shell: Shell) -> AsyncIterator[Shell]:
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(shell.suspicions.run(cast(Coordinator, shell)))
        yield shell
        task.cancel()


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_culprit_is_submitted() -> None:
    """The rank that the others wait for, and the sentence of `rallypoint stacks`."""
    async with examining(Shell()) as shell:
        shell.suspect()
        found = await shell.examined()

    assert (JOB_ID, shell.round, 2) == (found.job_id, found.round, found.rank)
    assert found.text.startswith("rank 2 has not entered collective number 6 of the default group")
    taken = shell.collecting.latest(JOB_ID)
    assert taken is not None and "suspected" == taken.evidence.reason


async def test_each_suspicion_is_examined_once() -> None:
    """Whatever else changes; a later one of the same round is examined, too."""
    async with examining(Shell()) as shell:
        shell.suspect()
        await shell.examined()
        shell.change()
        shell.suspect(replace(HANG, is_examined=True, rank=2))
        shell.change()
        await settle()
        assert shell.submitted.empty() and 2 == len(shell.asked)

        shell.suspect(None)
        shell.suspect(replace(HANG, suspected_ms=900_000))
        await shell.examined()

    assert 4 == len(shell.asked)


@pytest.mark.parametrize("is_asked", [True, False])
async def test_no_agent_answers(is_asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suspicion is examined all the same, and the text says that nothing is known."""
    monkeypatch.setattr("rallypoint.server.api.evidence.collecting.ANSWER_S_MAX", 0.02)
    shell = Shell()
    shell.can_ask, shell.script = is_asked, lambda: None
    async with examining(shell):
        shell.suspect()
        found = await shell.examined()

    assert (None, UNANSWERED) == (found.rank, found.text)


async def test_suspicion_that_is_over_is_not_submitted() -> None:
    """It was withdrawn, or the round has ended, while evidence was taken."""
    shell = Shell()

    def move() -> None:
        shell.suspect(None)
        shell.answer()

    shell.script = move
    async with examining(shell):
        shell.suspect()
        await settle()
        shell.suspect()
        shell.suspect(None)
        await settle()

    assert shell.submitted.empty()
    assert 2 == len(shell.asked)


async def test_job_that_is_gone() -> None:
    """Its suspicion is forgotten."""
    async with examining(Shell()) as shell:
        shell.suspect()
        del shell.state.jobs[JOB_ID]
        shell.change()
        await settle()

    assert shell.submitted.empty() and shell.asked == []


async def test_members_are_awaited() -> None:
    """After a start of the coordinator agents come back one after the other."""
    shell = Shell()
    shell.agents[1].break_off()
    async with examining(shell):
        shell.suspect()
        await settle()
        assert shell.asked == []

        shell.suspect(None)
        assert shell.agents[1].hello().refusal is None
        shell.suspect()
        await shell.examined()

    assert 2 == len(shell.asked)


async def test_error_is_logged_and_ends_nothing() -> None:
    """Only this suspicion has no evidence."""
    with structlog.testing.capture_logs() as lines:
        async with examining(Shell()) as shell:
            shell.error = LookupError("a bug")
            shell.suspect()
            await settle()
            shell.error = CoordinatorEnded()
            shell.suspect(replace(HANG, suspected_ms=400_000))
            await settle()
            shell.error = None
            shell.suspect(replace(HANG, suspected_ms=500_000))
            await shell.examined()

    assert ["suspicion_not_examined"] == [line["event"] for line in lines]


async def test_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the journal, and in every verdict and wait."""
    monkeypatch.setattr(module, "TEXT_CHARS_MAX", 10)
    async with examining(Shell()) as shell:
        shell.suspect()

        assert "rank 2 ha…" == (await shell.examined()).text


async def test_many_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared disk that stands still stops many jobs; each is examined in its turn."""
    monkeypatch.setattr(module, "AT_ONCE_MAX", 1)
    shell = Shell()
    shell.script = lambda: None
    async with examining(shell):
        shell.suspect()
        await settle()
        shell.suspect(None)
        shell.suspect(replace(HANG, suspected_ms=400_000))
        await settle()
        assert 2 == len(shell.asked)

        shell.script = shell.answer
        shell.answer()  # the first one is over: its outcome is not submitted
        await shell.examined()

    assert shell.submitted.empty()
    assert 4 == len(shell.asked)
