"""BarrierService, called as a client in any language would call it."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import CoroutineType
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from msgspec import Struct

from rallypoint.server.access.usage import rests
from rallypoint.server.api.barriers import openings
from rallypoint.server.api.barriers.openings import SMALL_MAX, Openings
from rallypoint.server.api.barriers.service import BarrierService
from rallypoint.server.api.barriers.waits import BarrierWaits, Wait
from rallypoint.server.contract import limits
from rallypoint.server.contract.calls import LimitExceeded
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.barrier import (
    NO_ONE,
    BarrierKey,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.shell.coordinator import CoordinatorEnded, InputRefused
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import node_pb2, scope_pb2
from support.core.coordinator import Bench
from support.core.fake_agents import JOB
from support.core.key_calls import failure
from support.core.served import LIMIT_S, Agent, Served, served

KEY = "rallypoint-worker-token"


class Workers(Struct):
    """Four workers of one node, in a round."""

    server: Served
    agent: Agent
    token: str

    @property
    def stub(self) -> Any:
        return barrier_grpc.BarrierServiceStub(self.server.channel)

    def arrive(
        self, rank: int, token: str | None = "", timeout: float = LIMIT_S, **fields: Any
    ) -> Any:
        """Begin to arrive; "" stands for the token of the round."""
        request = barrier_pb2.ArriveRequest(
            job_id=self.agent.job_id,
            name="b",
            participant=barrier_pb2.Participant(rank=rank),
            request_id=f"r{rank}",
        )
        request.MergeFrom(barrier_pb2.ArriveRequest(**fields))
        metadata = None if token is None else ((KEY, token or self.token),)
        return self.stub.Arrive(request, metadata=metadata, timeout=timeout)

    async def barriers(self) -> list[barrier_pb2.Barrier]:
        request = barrier_pb2.ListBarriersRequest(job_id=self.agent.job_id)
        return list((await self.stub.ListBarriers(request)).barriers)

    async def until_arrived(self, count: int) -> barrier_pb2.Barrier:
        """Wait until so many have arrived at the only barrier."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = await self.barriers()
                if found and found[0].arrived_count == count:
                    return found[0]


@asynccontextmanager
async def workers(job_id: str = "job", *, may_rest: bool = False) -> AsyncIterator[Workers]:
    async with served(may_rest=may_rest) as server:
        agent = server.agent(job_id, 1)
        await agent.hello(local_world_size=4)
        order = (await agent.read()).welcome.desired.run
        assert order.header.world_size == 4
        yield Workers(server, agent, order.worker_token)


async def test_everyone_gets_every_payload() -> None:
    """One answer for all, with the payloads in order of the ranks."""
    async with workers() as at:
        calls = [at.arrive(rank, payload=b"from %d" % rank) for rank in (2, 0, 3, 1)]
        answers = await asyncio.gather(*calls)
        assert all(answer == answers[0] for answer in answers)
        assert list(answers[0].participants.ranks) == [0, 1, 2, 3]
        assert list(answers[0].payloads) == [b"from %d" % rank for rank in range(4)]
        assert (answers[0].generation, answers[0].epoch) == (1, at.agent.epoch)
        assert await at.barriers() == []


async def test_call_that_is_repeated_is_the_same_arrival() -> None:
    """While others are missing, and after the release, when the answer was lost."""
    async with workers() as at:
        lost = at.arrive(0, payload=b"x")
        await at.until_arrived(1)
        lost.cancel()
        calls = [at.arrive(rank, payload=b"x") for rank in range(4)]
        answers = await asyncio.gather(*calls)
        again = await at.arrive(0, payload=b"x")
        assert again == answers[0]
        assert (await failure(at.arrive(0, request_id="other", timeout=0.3)))[0] == (
            grpc.StatusCode.DEADLINE_EXCEEDED
        )


async def test_generations_that_end_in_one_turn_answer_everyone() -> None:
    """Also those whose generation is not the latest any more when they are answered."""
    async with workers() as at:
        pair = barrier_pb2.Expected(count=2)
        for number in range(20):
            calls = [at.arrive(rank, name=f"p{number}", expected=pair) for rank in range(4)]
            answers = await asyncio.gather(*calls)
            assert sorted(answer.generation for answer in answers) == [1, 1, 2, 2]
            assert {answer.participant_count for answer in answers} == {2}


async def test_call_that_waits_keeps_none_of_its_names() -> None:
    names = barrier_pb2.Participants(ranks=range(4))
    async with workers() as group:
        waiting = [
            group.arrive(rank, expected=barrier_pb2.Expected(participants=names))
            for rank in range(3)
        ]
        await group.until_arrived(3)
        gc.collect()  # what other tests have left
        assert list(_kept_requests()) == []
        await asyncio.gather(*waiting, group.arrive(3, expected={"participants": names}))


def _kept_requests() -> Iterator[str]:
    """Yield which parts of the server keep a request, or the arrival that it became."""
    for one in gc.get_objects():
        if type(one) is inputs.Arrive:  # some objects of torch warn when their class is asked for
            yield "an arrival"
        elif type(one) is CoroutineType and "rallypoint/server" in one.cr_code.co_filename:
            found = one.cr_frame.f_locals.values() if one.cr_frame else ()
            if any(isinstance(value, barrier_pb2.ArriveRequest) for value in found):
                yield one.cr_code.co_qualname


async def test_list_says_who_waits_for_whom() -> None:
    """Who has arrived, who has not, and since when. Payloads are not shown."""
    async with workers() as at:
        call = at.arrive(2, payload=b"secret")
        found = await at.until_arrived(1)
        assert (found.name, found.generation, found.scope) == ("b", 1, scope_pb2.SCOPE_ROUND)
        assert (found.round, found.expected_count) == (1, 4)
        assert list(found.arrived.ranks) == [2]
        assert list(found.missing.ranks) == [0, 1, 3]
        assert found.time_left.seconds >= LIMIT_S - 4
        assert b"secret" not in found.SerializeToString()
        call.cancel()


async def test_list_has_pages() -> None:
    """By scope and name; a token names the last entry."""
    async with workers() as at:
        kept = [at.arrive(0, name=f"b{number}", scope=1 + number % 2) for number in range(5)]
        while len(await at.barriers()) < 5:
            pass
        names, token = [], ""
        while True:
            request = barrier_pb2.ListBarriersRequest(job_id="job", page_size=2, page_token=token)
            page = await at.stub.ListBarriers(request)
            names += [barrier.name for barrier in page.barriers]
            token = page.next_page_token
            if not token:
                break
        assert names == ["b1", "b3", "b0", "b2", "b4"]
        assert kept


async def test_deadline_of_the_barrier_ends_before_that_of_the_call() -> None:
    """So the caller learns who is missing, instead of an empty DEADLINE_EXCEEDED."""
    async with workers() as at:
        first, second = at.arrive(0, timeout=1.0), at.arrive(3, timeout=LIMIT_S)
        for call in (first, second):
            code, text, detail = await failure(call)
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert isinstance(detail, details_pb2.BarrierBroken)
            assert detail.reason == details_pb2.BARRIER_BREAK_REASON_OVERDUE
            assert list(detail.missing.ranks) == [1, 2]
            assert text.startswith("barrier b failed: not all participants arrived within ")
            assert text.endswith("; missing: ranks 1, 2")


async def test_failure_of_a_worker_ends_the_wait() -> None:
    """The status names the rank."""
    async with workers() as at:
        call = at.arrive(0)
        await at.until_arrived(1)
        exit = node_pb2.WorkerExit(exit_code=3)
        worker = node_pb2.Worker(local_rank=1, pid=7, exit=exit)
        await at.agent.report(exited=agent_pb2.Exited(round=1, workers=[worker]))
        code, text, detail = await failure(call)
        assert code is grpc.StatusCode.ABORTED
        assert list(detail.lost.ranks) == [1]
        assert text == (
            "barrier b failed: rank 1 on node n1 failed: exit code 3; missing: ranks 1, 2, 3"
        )
        code, _, stale = await failure(at.arrive(0))
        assert code is grpc.StatusCode.ABORTED
        assert stale.kind == details_pb2.STALE_KIND_ROUND


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"participant": barrier_pb2.Participant(node="")}, "participant.node"),
        ({"participant": barrier_pb2.Participant(name="x")}, "expected"),
        ({"payload": bytes(16_385)}, "payload"),
        ({"name": "a b"}, "name"),
        (
            {
                "expected": barrier_pb2.Expected(
                    count=1, participants=barrier_pb2.Participants(ranks=[0])
                )
            },
            "expected",
        ),
    ],
)
async def test_request_out_of_range_is_refused(fields: dict[str, Any], path: str) -> None:
    """With the path of the field."""
    async with workers() as at:
        code, text, _ = await failure(at.arrive(0, **fields))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text.startswith(f"{path}: ")


async def test_end_of_the_coordinator_ends_the_wait() -> None:
    """No turn will come: the interceptor makes UNAVAILABLE of it."""
    waits = BarrierWaits()
    wait = waits.find(BarrierKey(JobId("job"), 1, 1, "b"), 1)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        ended = tasks.create_task(_end(wait))
        await asyncio.sleep(0)  # one turn of the loop, in which the task begins to wait
        waits.end()
    assert isinstance(ended.result(), CoordinatorEnded)


async def _end(wait: Wait) -> Exception | None:
    try:
        await wait.end()
    except CoordinatorEnded as error:
        return error
    return None


def test_round_that_ends_in_the_turn_of_a_repeated_arrival() -> None:
    """The first attempt was answered, and its barrier was dropped with the round."""
    bench, unused = Bench(JobSpec(min_nodes=2, max_nodes=2)), cast(Any, None)
    bench.run_round("a", "b")
    claim = inputs.Claim(JOB, run=1, round=1, token="", is_signed=True)
    key = BarrierKey(JOB, 1, 1, "b")
    arrive = inputs.Arrive(
        claim, key, Participant(ParticipantKind.RANK, 0, ""), NO_ONE, 1_000, "r0"
    )
    service = BarrierService(unused, BarrierWaits(), bench.state, unused, unused)

    with pytest.raises(InputRefused) as refused:
        service._find(bench.state, arrive)

    assert refused.value.refusal.kind is RefusalKind.OLD_ROUND


NAMES = [f"w{number}" for number in range(SMALL_MAX + 1)]


@pytest.fixture
def one_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may open one barrier of many names in hours."""
    monkeypatch.setattr(openings, "BYTES_PER_S_MAX", 1)


def fields_of(name: str, names: list[str], barrier: str = "b") -> dict[str, Any]:
    """Return what is special about an arrival at a barrier of many names."""
    expected = barrier_pb2.Expected(participants=barrier_pb2.Participants(names=names))
    who = barrier_pb2.Participant(name=name)
    return {"participant": who, "expected": expected, "request_id": name, "name": barrier}


@pytest.mark.usefixtures("one_opening")
async def test_barriers_of_many_names_are_opened_at_a_limited_rate() -> None:
    """One too many is refused, and may try again; small ones and other jobs do not suffer."""
    async with workers() as at:
        first = at.arrive(0, **fields_of("w0", NAMES, "first"))
        await at.until_arrived(1)
        code, _, detail = await failure(at.arrive(0, **fields_of("w0", NAMES, "second")))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert detail.kind == details_pb2.LIMIT_KIND_OPEN_BARRIERS
        assert detail.HasField("retry_after")
        await asyncio.gather(*(at.arrive(rank) for rank in range(4)))
        other = at.server.agent("other", 9)
        await other.hello()
        token = (await other.read()).welcome.desired.run.worker_token
        overdue = at.arrive(0, token, 0.5, job_id="other", **fields_of("w0", NAMES))
        assert isinstance((await failure(overdue))[2], details_pb2.BarrierBroken)
        first.cancel()


@pytest.mark.usefixtures("one_opening")
async def test_barrier_of_many_names_is_opened_once_for_all() -> None:
    """In whatever order they say the names, however often; also when an answer was lost."""
    async with workers() as at:
        lists = [NAMES[number:] + NAMES[: number + 1] for number in range(len(NAMES))]
        everyone = [
            fields_of(name, names[number % 2 :])
            for number, (name, names) in enumerate(zip(NAMES, lists, strict=True))
        ]
        answers = await asyncio.gather(*(at.arrive(0, **fields) for fields in everyone))
        again = await asyncio.gather(*(at.arrive(0, **fields) for fields in everyone))
        assert {answer.generation for answer in answers} == {1}
        assert again == answers


@pytest.mark.parametrize(
    "fields",
    [
        {"count": len(NAMES)},
        {"participants": {"names": [*NAMES[1:], "other"]}},
        {"participants": {"nodes": NAMES}},
        {"participants": {"names": NAMES, "ranks": [0]}},
    ],
)
async def test_arrival_that_expects_others_is_read(fields: dict[str, Any]) -> None:
    """It does not count at the barrier, although that is open."""
    async with workers() as at:
        first = at.arrive(0, **fields_of("w0", NAMES))
        await at.until_arrived(1)
        differing = fields_of("w1", []) | {"expected": fields}
        code, _, _ = await failure(at.arrive(0, **differing))
        assert code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
        assert (await at.until_arrived(1)).arrived_count == 1
        first.cancel()


@pytest.mark.usefixtures("one_opening")
async def test_arrival_that_is_refused_unread_spends_nothing() -> None:
    """Because its token is not genuine, or because of the number of its names."""
    async with workers() as at:
        too_many: dict[str, Any] = {"expected": {"participants": {"ranks": range(3_073)}}}
        code, _, _ = await failure(at.arrive(0, **too_many))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        forged = at.token[:-1] + ("0" if at.token[-1] != "0" else "1")
        code, _, _ = await failure(at.arrive(0, forged, **fields_of("w0", NAMES)))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        first = at.arrive(0, **fields_of("w0", NAMES))
        await at.until_arrived(1)
        first.cancel()


@pytest.mark.usefixtures("one_opening")
async def test_arrival_that_is_refused_keeps_none_of_its_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it waits for its answer, because its host has too many."""
    resting = asyncio.Event()

    async def rest(wait_s: float) -> None:
        resting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(limits, "REFUSALS_AT_ONCE_MAX", 0)
    monkeypatch.setattr(rests, "sleep", rest)
    async with asyncio.timeout(LIMIT_S), workers(may_rest=True) as at:
        calls = [at.arrive(0, **fields_of("w0", NAMES, name)) for name in ("first", "second")]
        await resting.wait()
        await at.until_arrived(1)
        gc.collect()
        assert list(_kept_requests()) == []
        for call in calls:
            call.cancel()


def test_allowance_of_a_job_grows_with_time() -> None:
    """Each job has one; what was opened beyond it counts, too."""
    allowance = Openings(Bench().state)
    names = [name.rjust(253, "n") for name in NAMES]
    expected = barrier_pb2.Expected(participants=barrier_pb2.Participants(names=names))
    weight = expected.ByteSize() + 128 * len(names)
    burst = math.ceil(openings.BURST_S * openings.BYTES_PER_S_MAX / weight)
    again_s = 1_000.0 + weight / openings.BYTES_PER_S_MAX
    for _ in range(burst):
        allowance.pay(JOB, expected, 1_000.0)
    with pytest.raises(LimitExceeded):
        allowance.pay(JOB, expected, 1_000.0)
    allowance.pay(JobId("other"), expected, 1_000.0)
    allowance.pay(JOB, expected, again_s)
    with pytest.raises(LimitExceeded):
        allowance.pay(JOB, expected, again_s)
