"""An agent whose name or rank another node has: that may be the one that it replaces."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf.message import Message

from rallypoint.agent.session import link
from rallypoint.agent.session.endings import BrokenStream, Taken, read_ending
from rallypoint.agent.session.link import Link
from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.errors import DETAILS_KEY, pack_status
from support.agent.holder import Holder

TEXT = "another agent of job j is attached as node a"
SILENT = "the coordinator awaits node a"
TAKEN_S = 0.05


async def run(monkeypatch: pytest.MonkeyPatch, *answers: Exception, held: int = 0) -> Holder:
    """Run a link whose attempts end so, one after the other; return its user."""
    left = list(answers)

    async def attempt(self: Link) -> None:
        raise left.pop(0)

    monkeypatch.setattr(link, "TAKEN_S", TAKEN_S)
    monkeypatch.setattr(Link, "_attempt", attempt)
    user = Holder(held)
    async with asyncio.timeout(60):
        await Link("nowhere:1", "0" * 32, user).run()
    assert left == []
    return user


async def test_only_a_second_refusal_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder was heard between the two, so it lives."""
    user = await run(monkeypatch, *[Taken(EXIT_USAGE, TEXT)] * 2)

    assert user.ends == [TEXT]
    assert user.dismissals == [(EXIT_USAGE, TEXT)]


async def test_holder_that_turns_out_to_be_silent_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a node is cut off and its replacement starts at once."""
    waits = [BrokenStream(SILENT, 0.05)] * 3
    last = Taken(EXIT_USAGE, TEXT)  # ends the test
    user = await run(monkeypatch, Taken(EXIT_USAGE, TEXT), *waits, last)

    assert user.ends == [TEXT, SILENT, SILENT, SILENT]


async def test_agent_that_was_replaced_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers still run, and those of the node that has its name, too."""
    user = await run(monkeypatch, Taken(EXIT_USAGE, TEXT), held=1)

    assert user.dismissals == [(EXIT_USAGE, TEXT)]


@pytest.mark.parametrize(
    "detail", [details_pb2.NodeNameInUse(), details_pb2.NodeRankInUse()], ids=["name", "rank"]
)
def test_both_refusals_are_of_this_kind(detail: Message) -> None:
    """A name and a node rank can be those of a node that was cut off."""
    reason = details_pb2.REFUSAL_REASON_NODE_NAME_IN_USE
    status = pack_status(grpc.StatusCode.ALREADY_EXISTS, TEXT, detail, reason=reason)
    metadata = ((DETAILS_KEY, status.SerializeToString()),)

    assert isinstance(read_ending(grpc.StatusCode.ALREADY_EXISTS, TEXT, metadata), Taken)
