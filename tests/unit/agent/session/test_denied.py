"""A coordinator that does not know the agent, or does not allow it its job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from rallypoint.agent.session.endings import DENIALS, Denied, read_ending
from rallypoint.agent.session.link import Link
from rallypoint.agent.session.opening import Opening
from rallypoint.base.exit_codes import EXIT_DENIED, EXIT_USAGE
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.access import PLAIN, Access
from rallypoint.wire.credentials import Metadata
from rallypoint.wire.errors import DETAILS_KEY, REASON_PREFIX, pack_status
from support.agent.holder import Holder

TEXT = "the coordinator refused: an unknown token"
ATTEMPTS = 4


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Metadata]]:
    """Every session is refused; what each has shown is noted, and pauses cost nothing."""
    noted: list[Metadata] = []
    sleep = asyncio.sleep

    async def attempt(self: Link) -> None:
        channel = await self._opening.open("127.0.0.1:1")
        await channel.close()
        self._metadata = self._opening.metadata()
        noted.append(self._metadata)
        raise Denied(EXIT_DENIED, TEXT)

    async def pause(seconds: float) -> None:
        await sleep(0)

    monkeypatch.setattr(Link, "_attempt", attempt)
    monkeypatch.setattr(asyncio, "sleep", pause)
    yield noted


async def run(user: Holder, access: Access = PLAIN) -> None:
    async with asyncio.timeout(60):
        await Link("nowhere:1", "0" * 32, user, access).run()


async def test_agent_without_workers_ends(shown: list[Metadata]) -> None:
    """At once: another attempt would end in the same way."""
    user = Holder(0)
    await run(user)

    assert (user.dismissals, len(shown)) == ([(EXIT_DENIED, TEXT)], 1)


async def test_agent_with_workers_tries_again(shown: list[Metadata]) -> None:
    """For as long as they run."""
    user = Holder(ATTEMPTS)
    await run(user)

    assert user.ends == [TEXT] * ATTEMPTS
    assert user.dismissals == [(EXIT_DENIED, TEXT)]


async def test_newer_token_is_tried_first(
    shown: list[Metadata], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator may have learned of it before the agent."""
    file = tmp_path / "token"
    file.write_text("old")
    real = Opening.has_newer

    async def replaced(self: Opening, metadata: Metadata) -> bool:
        if len(shown) == 1:
            fresh = tmp_path / "fresh"
            fresh.write_text("new")
            fresh.replace(file)
        return await real(self, metadata)

    monkeypatch.setattr(Opening, "has_newer", replaced)
    user = Holder(0)
    await run(user, Access(token_file=str(file)))

    assert shown == [(("authorization", "Bearer old"),), (("authorization", "Bearer new"),)]
    assert user.dismissals == [(EXIT_DENIED, TEXT)]


async def test_file_of_no_use_ends_the_agent(shown: list[Metadata]) -> None:
    """If there is nothing from before."""
    user = Holder(0)
    await run(user, Access(token_file="nowhere"))

    text = "cannot read nowhere: No such file or directory"
    assert (user.dismissals, shown) == ([(EXIT_USAGE, text)], [])


def test_reasons_are_those_of_the_contract() -> None:
    """Each ends an agent without workers with the same exit code."""
    for name in sorted(DENIALS):
        reason = details_pb2.RefusalReason.Value(f"{REASON_PREFIX}{name}")
        status = pack_status(grpc.StatusCode.UNAUTHENTICATED, "no", None, reason=reason)
        metadata = ((DETAILS_KEY, status.SerializeToString()),)
        ending = read_ending(grpc.StatusCode.UNAUTHENTICATED, "no", metadata)

        assert isinstance(ending, Denied)
        assert (ending.exit_code, ending.text) == (77, "the coordinator refused: no")
