"""A coordinator that calls a message invalid: an upgrade must not end a running round."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.agent.session import link as link_module
from rallypoint.agent.session.endings import Misunderstood
from rallypoint.agent.session.link import Link
from support.agent.holder import Holder

TEXT = "exited.workers[0].exit: must be shorter"
INVALID = grpc.aio.AioRpcError(
    grpc.StatusCode.INVALID_ARGUMENT, grpc.aio.Metadata(), grpc.aio.Metadata(), details=TEXT
)
ATTEMPTS = 5


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Every attempt is welcomed and then refused; the pauses are noted and cost nothing."""
    noted: list[float] = []
    sleep = asyncio.sleep

    async def attempt(self: Link) -> None:
        self.exchange.is_welcome = True
        raise link_module._translate(INVALID, "nowhere:1")

    async def pause(seconds: float) -> None:
        noted.append(seconds)
        await sleep(0)

    monkeypatch.setattr(Link, "_attempt", attempt)
    monkeypatch.setattr(asyncio, "sleep", pause)
    yield noted


async def run(user: Holder) -> None:
    async with asyncio.timeout(60):
        await Link("nowhere:1", "0" * 32, user).run()


async def test_agent_with_a_round_stays(pauses: list[float], capsys: Any) -> None:
    """It keeps its workers, says so once, and pauses longer after every refusal."""
    user = Holder(held=ATTEMPTS)
    await run(user)

    assert [f"the coordinator refused: {TEXT}"] * ATTEMPTS == user.ends
    assert [(2, f"the coordinator refused: {TEXT}")] == user.dismissals  # once it holds no round
    assert 1 == capsys.readouterr().out.count("message_refused")
    assert pauses == sorted(pauses)
    assert 8 * pauses[0] <= 2 * pauses[-1]


async def test_agent_without_a_round_exits(pauses: list[float]) -> None:
    """As for any mistake on its command line."""
    user = Holder(held=0)
    await run(user)

    assert ([], [(2, f"the coordinator refused: {TEXT}")]) == (user.ends, user.dismissals)


def test_other_server_at_the_address_ends_no_round() -> None:
    """While the coordinator is away a proxy may answer in its place; that is no verdict."""
    metadata = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNIMPLEMENTED, metadata, metadata)

    ending = link_module._translate(error, "head:50051")

    assert isinstance(ending, Misunderstood)
    assert str(ending) == "no rallypoint coordinator listens at head:50051"
