"""Evidence is collected from the agents that were asked, within its time, and kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from rallypoint.server.api.evidence import collecting
from rallypoint.server.api.evidence.collecting import Collecting, Member, Round, Taken
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import evidence_pb2

JOB, OTHER = JobId("job"), JobId("other")
A, B = SessionId("a"), SessionId("b")
ROUND = Round(JOB, 3, 4, (Member(A, 0, 2), Member(B, 2, 2)))
LIMIT_S = 20.0


class Agents:
    """Notes what agents are asked, and answers for them once all are."""

    def __init__(self) -> None:
        self.asked: dict[SessionId, agent_pb2.CollectEvidence] = {}
        self.deaf: set[SessionId] = set()
        self.collecting = Collecting(self._ask)
        self._script: Callable[[], None] = lambda: None

    def _ask(self, session: SessionId, request: agent_pb2.CollectEvidence) -> bool:
        self.asked[session] = request
        if session == ROUND.members[-1].session:
            asyncio.get_running_loop().call_soon(self._script)
        return session not in self.deaf

    def report(
        self,
        session: SessionId,
        *ranks: int,
        size: int = 100,
        pid: int = 0,
        job_id: JobId = JOB,
        has_more: bool = False,
    ) -> None:
        frame = evidence_pb2.Frame(function="f" * size)
        threads = [
            evidence_pb2.ThreadStack(is_main=is_main, frames=[frame]) for is_main in (True, False)
        ]
        report = [evidence_pb2.RankEvidence(rank=rank, pid=pid, threads=threads) for rank in ranks]
        evidence_id = self.asked[A].evidence_id
        self.collecting.report(job_id, session, evidence_id, report, has_more=has_more)

    async def take(self, script: Callable[[], None], round: Round = ROUND) -> Taken:
        self._script = script
        async with asyncio.timeout(LIMIT_S):
            return await self.collecting.take(round, "requested")

    def all_answer(self) -> None:
        self.report(A, 0, 1)
        self.report(B, 2, 3)


async def test_all_answer() -> None:
    """The call ends with the last report, and others read the evidence later."""
    agents = Agents()

    def answer() -> None:
        agents.report(A, 0, has_more=True)
        agents.report(A, 1)
        agents.report(B, 2, 3)

    taken = await agents.take(answer)

    assert [0, 1, 2, 3] == sorted(taken.ranks)
    evidence = taken.evidence
    assert (3, 4, 4) == (evidence.round, evidence.world_size, evidence.answered)
    assert taken is agents.collecting.latest(JOB)
    assert agents.collecting.latest(OTHER) is None


async def test_calls_at_the_same_time_share_evidence() -> None:
    """Every agent is asked once, and each call gets the same."""
    agents = Agents()
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(agents.take(agents.all_answer)) for _ in range(3)]

    assert len({id(call.result()) for call in calls}) == 1


async def test_missing_reports_are_not_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come by then counts. An agent that cannot be asked is not waited for at all."""
    agents = Agents()
    agents.deaf.add(B)
    taken = await agents.take(lambda: agents.report(A, 0, 1))
    assert [0, 1] == sorted(taken.ranks)
    assert (2, None) == (taken.evidence.answered, taken.evidence.culprit)

    monkeypatch.setattr(collecting, "ANSWER_S_MAX", 0.05)
    agents.deaf.clear()
    began_s = time.monotonic()
    taken = await agents.take(lambda: None)

    assert 0.05 <= time.monotonic() - began_s
    assert (0, 4) == (taken.evidence.answered, taken.evidence.world_size)


@pytest.mark.parametrize("what", ["other session", "other rank", "twice", "other id"])
async def test_reports_that_do_not_count(what: str) -> None:
    """Of another agent or request, about ranks of another node, or again."""
    agents = Agents()

    def answer() -> None:
        if what == "other session":
            agents.report(SessionId("c"), 0, pid=666, has_more=True)
        elif what == "other rank":
            agents.report(B, 0, pid=666, has_more=True)
        elif what == "other id":
            wrong = [evidence_pb2.RankEvidence(rank=0, pid=666)]
            agents.collecting.report(JOB, A, "0" * 32, wrong, has_more=True)
        agents.report(A, 0, has_more=True)
        if what == "twice":
            agents.report(A, 0, pid=666, has_more=True)
        agents.report(A, 1)
        agents.report(B, 2, 3)

    taken = await agents.take(answer)
    agents.report(A, 0, pid=666)  # too late

    assert 0 == taken.ranks[0].pid


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ranks beyond, only what is compared is kept; the oldest evidence of all is dropped."""
    monkeypatch.setattr(collecting, "JOB_BYTES_MAX", 500)
    monkeypatch.setattr(collecting, "ALL_BYTES_MAX", 1_000)
    agents = Agents()
    taken = await agents.take(agents.all_answer)

    assert [2, 2, 1, 1] == [len(taken.ranks[rank].threads) for rank in range(4)]
    assert 500 < taken.size < 1_000

    def answer() -> None:
        agents.report(A, 0, 1, job_id=OTHER)
        agents.report(B, 2, 3, job_id=OTHER)

    await agents.take(answer, Round(OTHER, 1, 4, ROUND.members))

    assert agents.collecting.latest(JOB) is None
    assert agents.collecting.latest(OTHER) is not None


async def test_call_that_was_given_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one asks again, and does not get what is old by then."""
    monkeypatch.setattr(collecting, "ANSWER_S_MAX", 0.02)
    agents = Agents()

    def give_up() -> None:
        call.cancel()

    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(agents.take(give_up))
    first = agents.asked[A].evidence_id
    await asyncio.to_thread(time.sleep, 0.03)
    await agents.take(lambda: None)

    assert call.cancelled()
    assert first != agents.asked[A].evidence_id


async def test_rank_that_is_too_large_is_cut() -> None:
    """An agent sends at most 64 KiB of each; whatever one sends, the rest of the job counts."""
    agents = Agents()

    def answer() -> None:
        agents.report(A, 0, size=collecting.RANK_BYTES_MAX)
        agents.report(A, 1)
        agents.report(B, 2, 3)

    taken = await agents.take(answer)

    assert [1, 2, 2, 2] == [len(taken.ranks[rank].threads) for rank in range(4)]
    assert "not all: the evidence of the job is too large" in taken.ranks[0].gaps
