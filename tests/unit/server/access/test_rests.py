"""A host whose calls are refused without end gets its answers late; nothing else waits."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.server.access.usage import rests
from rallypoint.server.access.usage.rests import (
    BYTES_PER_REFUSAL,
    ENDS_PER_S_MAX,
    REST_S_MAX,
    Received,
    Rests,
)
from rallypoint.server.contract import limits
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.wire.limits import LEAST_REQUEST_BYTES
from support.core.served import LIMIT_S, Served, served

GET = "/rallypoint.v1.JobService/GetJob"
LIST = "/rallypoint.v1.JobService/ListJobs"
INVALID = jobs_pb2.GetJobRequest(job_id="x" * 256).SerializeToString()
UNKNOWN = jobs_pb2.GetJobRequest(job_id="none").SerializeToString()
TOO_LONG = b"x" * (LEAST_REQUEST_BYTES + 1)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return how long each rest takes, in seconds. None of them takes any."""
    found = list[float]()

    async def sleep(wait_s: float) -> None:
        found.append(wait_s)

    monkeypatch.setattr(rests, "sleep", sleep)
    monkeypatch.setattr(limits, "REFUSALS_AT_ONCE_MAX", 2)
    monkeypatch.setattr(limits, "REFUSALS_PER_S_MAX", 1e-3)
    return found


async def call(server: Served, method: str, request: bytes) -> grpc.StatusCode:
    """Make a call; return its code."""
    make: Any = server.channel.unary_unary(method)
    code: grpc.StatusCode = await make(request, timeout=LIMIT_S).code()
    return code


@pytest.mark.parametrize("request_", [INVALID, TOO_LONG, b"\xff"], ids=["field", "size", "bytes"])
async def test_refused_calls_rest(waits: list[float], request_: bytes) -> None:
    """Once a host has too many, wherever they are refused; its other calls do not."""
    async with served(may_rest=True) as server:
        codes = [await call(server, GET, request_) for _ in range(3)]
        rested = list(waits)
        others = [await call(server, GET, UNKNOWN), await call(server, LIST, b"")]

    assert [grpc.StatusCode.INVALID_ARGUMENT] * 3 == codes
    assert rested and all(0 < wait_s <= REST_S_MAX * 1.01 for wait_s in rested)
    assert [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OK] == others
    assert rested == waits


async def test_large_messages_count_more(waits: list[float]) -> None:
    """One of many bytes rests at once."""
    await Rests().rest("a", Received(size=2 * BYTES_PER_REFUSAL))

    assert len(waits) == 1


async def test_more_at_once_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a host that makes thousands of calls at once is not answered more often."""
    found, go_on = list[float](), asyncio.Event()

    async def sleep(wait_s: float) -> None:
        found.append(wait_s)
        await go_on.wait()

    monkeypatch.setattr(rests, "sleep", sleep)
    monkeypatch.setattr(limits, "REFUSALS_AT_ONCE_MAX", 0)
    host, count = Rests(), 10 * ENDS_PER_S_MAX
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(host.rest("a", Received()))
        await asyncio.sleep(0)  # each of them begins
        go_on.set()

    ends = sorted(found)
    assert count == len(ends)
    assert all(later - ends[at] >= 0.99 for at, later in enumerate(ends[ENDS_PER_S_MAX + 64 :]))


async def test_large_messages_let_others_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a host that sends many of them at once sends them no more often."""
    found, go_on = list[float](), asyncio.Event()

    async def sleep(wait_s: float) -> None:
        found.append(wait_s)
        await go_on.wait()

    monkeypatch.setattr(rests, "sleep", sleep)
    monkeypatch.setattr(limits, "REFUSALS_AT_ONCE_MAX", 0)
    host, large = Rests(), Received(size=(ENDS_PER_S_MAX - 1) * BYTES_PER_REFUSAL, is_held=False)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(host.rest("a", large))
        await asyncio.sleep(0)  # each of them begins
        go_on.set()

    assert [0, 1, 2] == [round(wait_s - REST_S_MAX) for wait_s in found]


@pytest.mark.parametrize(
    ("limit", "value"), [("RESTING_PER_HOST_MAX", 1), ("RESTING_BYTES_PER_HOST_MAX", 1)]
)
async def test_what_rests_is_bounded(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """By calls, and by the bytes of messages that are still there; others are answered at once."""
    monkeypatch.setattr(limits, "REFUSALS_AT_ONCE_MAX", 0)
    monkeypatch.setattr(limits, limit, value)
    monkeypatch.setattr(limits, "REFUSALS_PER_S_MAX", 1 / LIMIT_S)  # what rests does so for long
    monkeypatch.setattr("rallypoint.server.access.usage.rests.REST_S_MAX", LIMIT_S)
    rests, received = Rests(), Received(size=1)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(rests.rest("a", received))
        await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S):
            await rests.rest("a", received)
        is_resting = not first.done()
        other = tasks.create_task(rests.rest("b", received))
        await asyncio.sleep(0)

        first.cancel()
        await asyncio.wait([first])
        again = tasks.create_task(rests.rest("a", received))
        await asyncio.sleep(0)

        assert is_resting
        assert not again.done() and not other.done()
        again.cancel()
        other.cancel()
