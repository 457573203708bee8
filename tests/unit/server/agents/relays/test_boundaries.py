"""Boundary values of every field of what a relay sends, beside an agent that does nothing wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from itertools import count

import grpc
import pytest

from rallypoint.server.agents.relays import carrying
from rallypoint.server.contract import limits
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from support.contract.boundaries import changes, variants
from support.core.served import Served, hello_of, served
from support.relays.carried import Entry, HandRelay, envelope

OUR_FAULT = {"UNKNOWN", "INTERNAL", "DATA_LOSS", "DEADLINE_EXCEEDED"}
BYSTANDER, SENDER = 7, 8
"""Numbers of their streams: no boundary values, so that no variant is about the bystander."""
OF_THE_RELAY = ("entries[0].stream", "entries with", "entries twice")
"""Variants that only a faulty relay can send: they may end its stream, and no others may."""
CLOSING = Entry(stream=SENDER, closing=agent_pb2.RelayedClosing(still_reads=True))


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(carrying, "LOOK_S", 60.0)  # these relays show no life by themselves
    async with served() as made:
        yield made


SESSIONS = count(1_000)


def enter(stream: int, session: int) -> Entry:
    """Return the beginning of the stream of an agent in its own job."""
    hello = envelope(session, hello=hello_of(f"a{session}", session))
    return Entry(stream=stream, opening=agent_pb2.RelayedOpening(hello=hello))


class Rack:
    """A relay with an agent that does nothing wrong, and perhaps another one."""

    def __init__(self, server: Served) -> None:
        self.relay = HandRelay(server.channel)
        self.bystander, self.sender = next(SESSIONS), next(SESSIONS)
        self.beats = 0

    async def begin(self, *, with_sender: bool = False) -> Rack:
        await self.relay.begin()
        await self.relay.send(enter(BYSTANDER, self.bystander))
        await self.relay.wait(BYSTANDER, "welcome")
        if with_sender:
            await self.relay.send(enter(SENDER, self.sender))
            await self.relay.wait(SENDER, "welcome")
        return self

    def entry(self, kind: str) -> Entry:
        """Return what the sender does."""
        if kind == "opening":
            return enter(SENDER, self.sender)
        if kind == "closing":
            return CLOSING
        message = envelope(self.sender, heartbeat=agent_pb2.Heartbeat(number=1))
        return Entry(stream=SENDER, message=message)

    def beat(self) -> Entry:
        """Return the next heartbeat of the bystander."""
        self.beats += 1
        message = envelope(self.bystander, heartbeat=agent_pb2.Heartbeat(number=self.beats))
        return Entry(stream=BYSTANDER, message=message)

    async def check(self) -> str:
        """Return how the stream of the relay has ended; empty: its heartbeat was answered."""
        try:
            answer = await self.relay.wait(BYSTANDER, "acknowledgement")
        except (grpc.aio.AioRpcError, AssertionError):
            return (await self.relay.ending())[0]
        assert self.beats == answer.acknowledgement.heartbeat
        return ""


@pytest.mark.parametrize("kind", ["opening", "message", "closing"])
async def test_values_end_their_sender_alone(server: Served, kind: str) -> None:
    """A clear status for each, and the neighbour keeps its seat unless the relay is at fault."""
    direct = await server.join("direct", 77)
    sample = agent_pb2.RelayRequest(entries=[Rack(server).entry(kind)])
    # A number that was used before is used again.
    faults = OF_THE_RELAY if kind == "opening" else (*OF_THE_RELAY, "entries[0].opening")
    ends = Counter[str]()
    for name, change in changes(sample):
        rack = await Rack(server).begin(with_sender=kind != "opening")
        variant = agent_pb2.RelayRequest(entries=[rack.entry(kind)])
        change(variant)
        variant.entries.append(rack.beat())
        await rack.relay.call.write(variant)
        end = await rack.check()
        rack.relay.call.cancel()
        await direct.check_alive()

        assert end not in OUR_FAULT, name
        assert not end or name.startswith(faults), f"{name}: {end}"
        ends[end] += 1

    assert {"", "INVALID_ARGUMENT"} == set(ends), ends


async def test_first_message_says_what_the_relay_speaks(server: Served) -> None:
    """Any number but none; agents in it are too early."""
    found: dict[str, str] = {}
    sample = agent_pb2.RelayRequest(entries=[enter(1, 1)], protocol_version=1)
    for name, variant in variants(sample):
        relay = HandRelay(server.channel)
        await relay.call.write(variant)
        found[name] = (await relay.ending())[0] if variant.entries else "left open"
        relay.call.cancel()

    assert {"INVALID_ARGUMENT", "left open"} == set(found.values()), found


async def test_order_of_entries(server: Served) -> None:
    """What is about no seat is ignored; a number that was used before is a fault of the relay."""
    rack = await Rack(server).begin()
    message, opening = rack.entry("message"), rack.entry("opening")
    await rack.relay.send(message, CLOSING, Entry(stream=SENDER), opening)
    await rack.relay.wait(SENDER, "welcome")
    await rack.relay.send(CLOSING)
    assert 0 == (await rack.relay.wait(SENDER, "end")).code
    await rack.relay.send(rack.beat())
    assert "" == await rack.check()
    await rack.relay.send(message, opening)

    code, text = await rack.relay.ending()
    assert ("INVALID_ARGUMENT", True) == (code, text.startswith("entries.stream: must be higher"))


async def test_flood_of_seats(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each beyond the limit gets its status, and the others stay."""
    monkeypatch.setattr(limits, "STREAMS_PER_RELAY_MAX", 2)
    rack, many = await Rack(server).begin(), range(SENDER, 1_008)
    await rack.relay.send(*(enter(number, next(SESSIONS)) for number in many))
    ends = [await rack.relay.wait(number, "end") for number in many[1:]]

    assert {8} == {end.code for end in ends}
    await rack.relay.send(rack.beat())
    assert "" == await rack.check()
