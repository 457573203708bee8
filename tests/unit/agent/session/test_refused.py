"""A coordinator refuses an agent: which refusals end it, and which may be over the next time.

It may not know the agent, or not allow it its job; another node may have its name or rank, which is
the one that it replaces, perhaps; or it calls a message invalid, which must end no running round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from rallypoint.agent.session import link as link_module
from rallypoint.agent.session.connector import Connector
from rallypoint.agent.session.endings import (
    DENIALS,
    BrokenStream,
    Denied,
    Misunderstood,
    Taken,
    read_ending,
)
from rallypoint.agent.session.link import Link
from rallypoint.base.exit_codes import EXIT_DENIED, EXIT_USAGE
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.access import PLAIN, Access
from rallypoint.wire.credentials import Metadata
from rallypoint.wire.errors import DETAILS_KEY, REASON_PREFIX, pack_status
from support.agent.holder import Holder

UNKNOWN = "the coordinator refused: an unknown token"
TAKEN = "another agent of job j is attached as node a"
AWAITED = "the coordinator awaits node a"
INVALID = "exited.workers[0].exit: must be shorter"
REFUSED = f"the coordinator refused: {INVALID}"
ATTEMPTS = 5
SLEEP = asyncio.sleep
Run = Callable[..., Any]


class Attempts:
    """What a link has shown in its attempts, and how long it has paused after them."""

    def __init__(self) -> None:
        self.shown: list[Metadata] = []
        self.pauses: list[float] = []


@pytest.fixture
def attempts() -> Attempts:
    return Attempts()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, attempts: Attempts) -> Run:
    """Return a function that runs a link until it ends; pauses cost nothing.

    Its attempts end with these refusals, one after the other, and then with the last one again.
    """

    async def pause(seconds: float) -> None:
        attempts.pauses.append(seconds)
        await SLEEP(0)

    async def run(
        refusals: Sequence[Exception],
        *,
        held: int = 0,
        access: Access = PLAIN,
        is_welcome: bool = False,
    ) -> Holder:
        async def attempt(self: Link) -> None:
            await (await self._connector.open("127.0.0.1:1")).close()
            self._metadata = self._connector.metadata()
            attempts.shown.append(self._metadata)
            self.exchange.is_welcome = is_welcome
            raise refusals[min(len(attempts.shown), len(refusals)) - 1]

        monkeypatch.setattr(Link, "_attempt", attempt)
        user = Holder(held)
        async with asyncio.timeout(60):
            await Link("nowhere:1", "0" * 32, user, access).run()
        return user

    monkeypatch.setattr(asyncio, "sleep", pause)
    return run


def ending_of(code: grpc.StatusCode, detail: Message | None, reason: str) -> Exception:
    """Return what an agent makes of a refusal with the text "no"."""
    number = details_pb2.RefusalReason.Value(f"{REASON_PREFIX}{reason}")
    status = pack_status(code, "no", detail, reason=number)
    return read_ending(code, "no", ((DETAILS_KEY, status.SerializeToString()),))


# --- A coordinator that does not know the agent, or does not allow it its job ---


async def test_stranger_without_workers_ends(run: Run, attempts: Attempts) -> None:
    """At once: another attempt would end in the same way."""
    user = await run([Denied(EXIT_DENIED, UNKNOWN)])

    assert (user.dismissals, len(attempts.shown)) == ([(EXIT_DENIED, UNKNOWN)], 1)


async def test_stranger_with_workers_tries_again(run: Run) -> None:
    """For as long as they run."""
    user = await run([Denied(EXIT_DENIED, UNKNOWN)], held=ATTEMPTS)

    assert user.ends == [UNKNOWN] * ATTEMPTS
    assert user.dismissals == [(EXIT_DENIED, UNKNOWN)]


async def test_newer_token_is_tried_first(
    run: Run, attempts: Attempts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator may have learned of it before the agent."""
    file = tmp_path / "token"
    file.write_text("old")
    real = Connector.has_newer

    async def replaced(self: Connector, metadata: Metadata) -> bool:
        if len(attempts.shown) == 1:
            fresh = tmp_path / "fresh"
            fresh.write_text("new")
            fresh.replace(file)
        return await real(self, metadata)

    monkeypatch.setattr(Connector, "has_newer", replaced)
    user = await run([Denied(EXIT_DENIED, UNKNOWN)], access=Access(token_file=str(file)))

    assert attempts.shown == [(("authorization", f"Bearer {word}"),) for word in ("old", "new")]
    assert user.dismissals == [(EXIT_DENIED, UNKNOWN)]


async def test_file_of_no_use_ends_the_agent(run: Run, attempts: Attempts) -> None:
    """If there is nothing from before."""
    user = await run([Denied(EXIT_DENIED, UNKNOWN)], access=Access(token_file="nowhere"))

    text = "cannot read nowhere: No such file or directory"
    assert (user.dismissals, attempts.shown) == ([(EXIT_USAGE, text)], [])


@pytest.mark.parametrize("name", sorted(DENIALS))
def test_reasons_are_those_of_the_contract(name: str) -> None:
    """Each ends an agent without workers with the same exit code."""
    ending = ending_of(grpc.StatusCode.UNAUTHENTICATED, None, name)

    assert isinstance(ending, Denied)
    assert (ending.exit_code, ending.text) == (77, "the coordinator refused: no")


# --- Another node has the name or rank of the agent ---


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """The holder of a name is waited for a moment only, which has to pass."""
    monkeypatch.setattr(link_module, "TAKEN_S", 0.05)
    monkeypatch.setattr(asyncio, "sleep", SLEEP)


@pytest.mark.usefixtures("brief")
async def test_only_a_second_refusal_is_final(run: Run) -> None:
    """The holder was heard between the two, so it lives."""
    user = await run([Taken(EXIT_USAGE, TAKEN)])

    assert (user.ends, user.dismissals) == ([TAKEN], [(EXIT_USAGE, TAKEN)])


@pytest.mark.usefixtures("brief")
async def test_holder_that_turns_out_to_be_silent_is_waited_for(run: Run) -> None:
    """As when a node is cut off and its replacement starts at once."""
    taken = Taken(EXIT_USAGE, TAKEN)  # the last one ends the test
    user = await run([taken, *[BrokenStream(AWAITED, 0.05)] * 3, taken])

    assert user.ends == [TAKEN, AWAITED, AWAITED, AWAITED]


@pytest.mark.usefixtures("brief")
async def test_agent_that_was_replaced_ends_at_once(run: Run, attempts: Attempts) -> None:
    """Its workers still run, and those of the node that has its name, too."""
    user = await run([Taken(EXIT_USAGE, TAKEN)], held=1)

    assert (user.dismissals, len(attempts.shown)) == ([(EXIT_USAGE, TAKEN)], 1)


@pytest.mark.parametrize("reason", ["NODE_NAME_IN_USE", "NODE_RANK_IN_USE"])
def test_both_refusals_are_of_this_kind(reason: str) -> None:
    """A name and a node rank can be those of a node that was cut off."""
    ending = ending_of(grpc.StatusCode.ALREADY_EXISTS, None, reason)

    assert isinstance(ending, Taken)


# --- A coordinator that calls a message invalid ---


def invalid() -> Exception:
    none = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.INVALID_ARGUMENT, none, none, details=INVALID)
    return link_module._translate(error, "nowhere:1")


async def test_agent_with_a_round_stays(run: Run, attempts: Attempts, capsys: Any) -> None:
    """It keeps its workers, says so once, and pauses longer after every refusal."""
    user = await run([invalid()], held=ATTEMPTS, is_welcome=True)

    assert [REFUSED] * ATTEMPTS == user.ends
    assert [(2, REFUSED)] == user.dismissals  # once it holds no round
    assert 1 == capsys.readouterr().out.count("message_refused")
    assert attempts.pauses == sorted(attempts.pauses)
    assert 8 * attempts.pauses[0] <= 2 * attempts.pauses[-1]


async def test_agent_without_a_round_exits(run: Run) -> None:
    """As for any mistake on its command line."""
    user = await run([invalid()], is_welcome=True)

    assert ([], [(2, REFUSED)]) == (user.ends, user.dismissals)


def test_other_server_at_the_address_ends_no_round() -> None:
    """While the coordinator is away a proxy may answer in its place; that is no verdict."""
    none = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNIMPLEMENTED, none, none)

    ending = link_module._translate(error, "head:50051")

    assert isinstance(ending, Misunderstood)
    assert str(ending) == "no rallypoint coordinator listens at head:50051"
