"""A relay's stream at a real coordinator: many agents on it, each served as if it were alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rallypoint.server.agents.envelopes import Envelopes
from rallypoint.server.agents.outbox import Outbox
from rallypoint.server.agents.relays import carrying
from rallypoint.server.contract import limits
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from support.core.served import LIMIT_S, Served, hello_of, served
from support.relays.carried import Entry, HandRelay, beat, carried, envelope, opening


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(carrying, "LOOK_S", 60.0)  # these relays show no life by themselves
    async with served() as made:
        yield made


@pytest.fixture
async def relay(server: Served) -> HandRelay:
    return await HandRelay(server.channel).begin()


async def is_attached(server: Served, number: int) -> bool:
    """Return whether the only node of a job has a connection."""
    stub = job_service_pb2_grpc.JobServiceStub(server.channel)
    request = job_service_pb2.GetJobRequest(job_id=f"a{number}")
    job = (await stub.GetJob(request, timeout=LIMIT_S)).job
    return bool(job.nodes) and bool(job.nodes[0].attached)


async def test_agents_share_a_stream(relay: HandRelay) -> None:
    """Each is welcome with its own orders, and gets the answers to its own heartbeats."""
    await relay.send(*(opening(number, f"a{number}") for number in (1, 2, 3)))
    welcomes = [await relay.wait(number, "welcome") for number in (1, 2, 3)]
    await relay.send(beat(3, 7), beat(1, 5))

    assert ["n1", "n2", "n3"] == [one.welcome.node_name for one in welcomes]
    assert [f"{number:032x}" for number in (1, 2, 3)] == [one.session_id for one in welcomes]
    assert all(one.welcome.desired.HasField("run") for one in welcomes)
    assert 5 == (await relay.wait(1, "acknowledgement")).acknowledgement.heartbeat
    assert 7 == (await relay.wait(3, "acknowledgement")).acknowledgement.heartbeat


async def test_addresses_of_a_relay_count_for_nothing(relay: HandRelay) -> None:
    """Its agents take it for the coordinator: what they have reached is its host."""
    hellos = hello_of("a", 1), hello_of("a", 2)
    for hello in hellos:
        hello.spec.CopyFrom(job_pb2.JobSpec(min_nodes=2, max_nodes=2))
    hellos[0].host_addresses.extend(("10.0.0.1", "10.1.0.1"))
    hellos[1].coordinator_addresses.append("10.1.0.1")
    for number, hello in enumerate(hellos, 1):
        await relay.send(carried(number, hello))
    order = (await relay.wait(1, "desired")).desired.run

    assert ("10.0.0.1", []) == (order.header.master_addr, list(order.reached_at))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\xff\xff", "message: cannot be decoded"),
        (envelope(1), "message: is missing"),
        (envelope(2, heartbeat=agent_pb2.Heartbeat(number=1)), "session_id: must not change"),
        (envelope(1, ready=agent_pb2.Ready(round=1, master_port=7)), "sequence: must be 1 or more"),
    ],
)
async def test_faulty_agent_ends_alone(
    server: Served, relay: HandRelay, message: bytes, text: str
) -> None:
    """With the status that it would have got directly; the others of its relay stay."""
    await relay.join((1, 2))
    await relay.send(Entry(stream=1, message=message))
    end = await relay.wait(1, "end")
    await relay.send(beat(1), beat(2))

    assert (3, True) == (end.code, end.text.startswith(text))
    assert end.details
    assert 1 == (await relay.wait(2, "acknowledgement")).acknowledgement.heartbeat
    assert not await is_attached(server, 1)
    assert await is_attached(server, 2)


async def test_faulty_hello_is_refused_alone(relay: HandRelay) -> None:
    """One that breaks the contract, and one that is no message."""
    wrong = opening(2, "")
    nonsense = Entry(stream=3, opening=agent_pb2.RelayedOpening(hello=b"\xff\xff"))
    empty = Entry(stream=4, opening=agent_pb2.RelayedOpening())
    await relay.send(opening(1), wrong, nonsense, empty, beat(2))

    assert "hello.job_id: must not be empty" == (await relay.wait(2, "end")).text
    assert "message: cannot be decoded" == (await relay.wait(3, "end")).text
    assert "opening.hello: must not be empty" == (await relay.wait(4, "end")).text
    assert (await relay.wait(1, "welcome")).HasField("welcome")


async def test_bug_ends_one_agent(relay: HandRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message for it cannot be made: its stream ends with INTERNAL, and its neighbour's stays."""
    await relay.join((1, 2))
    real = Envelopes.answer

    def answer(self: Envelopes, outbox: Outbox, waiting: Any) -> agent_pb2.SessionResponse:
        if outbox.session == f"{1:032x}":
            raise ValueError("planted")
        return real(self, outbox, waiting)

    monkeypatch.setattr(Envelopes, "answer", answer)
    await relay.send(beat(1), beat(2))

    assert 13 == (await relay.wait(1, "end")).code
    assert 1 == (await relay.wait(2, "acknowledgement")).acknowledgement.heartbeat


async def test_explanation_delays_no_other_agent(
    server: Served, relay: HandRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator cannot answer what a job waits for: its neighbours, and the relay, hear."""
    waits = opening(2, "b")
    hello = agent_pb2.SessionRequest.FromString(waits.opening.hello)
    hello.hello.spec.min_nodes = hello.hello.spec.max_nodes = 2
    waits.opening.hello = hello.SerializeToString()
    await relay.send(opening(1, "a"), waits)
    for number in (1, 2):
        await relay.wait(number, "welcome")
    asked, may_answer, real = asyncio.Event(), asyncio.Event(), Coordinator.read

    async def read(self: Coordinator, answer: Any) -> Any:
        asked.set()
        await may_answer.wait()
        return await real(self, answer)

    monkeypatch.setattr(Coordinator, "read", read)
    await relay.send(beat(2))
    async with asyncio.timeout(LIMIT_S):
        await asked.wait()
    await relay.send(beat(1))
    await relay.wait(1, "acknowledgement")
    may_answer.set()

    explained = (await relay.wait(2, "acknowledgement")).acknowledgement
    assert (1, True) == (explained.heartbeat, explained.HasField("waiting"))


async def test_gone_agent_is_disconnected(server: Served, relay: HandRelay) -> None:
    """As soon as the relay says so."""
    await relay.join((1, 2))
    await relay.send(Entry(stream=1, closing=agent_pb2.RelayedClosing()), beat(2))
    await relay.wait(2, "acknowledgement")

    assert not await is_attached(server, 1)
    assert await is_attached(server, 2)


async def test_agent_that_leaves_gets_its_answer(relay: HandRelay) -> None:
    """Its Goodbye is acknowledged, and then its stream ends with OK, also if it sends no more."""
    await relay.send(opening(1))
    epoch = (await relay.wait(1, "welcome")).epoch
    goodbye = agent_pb2.Goodbye(reason=agent_pb2.GOODBYE_REASON_SIGNAL)
    still = agent_pb2.RelayedClosing(still_reads=True)
    await relay.send(
        Entry(stream=1, message=envelope(1, epoch=epoch, sequence=1, goodbye=goodbye)),
        Entry(stream=1, closing=still),
    )

    assert 1 == (await relay.wait(1, "acknowledgement")).acknowledged
    assert 0 == (await relay.wait(1, "end")).code


async def test_agents_outlive_their_relay(server: Served, relay: HandRelay) -> None:
    """Its stream breaks: a node comes back through another one with the same session and round."""
    await relay.join((1,))
    relay.call.cancel()
    other = await HandRelay(server.channel).begin()
    again = opening(1, "a1")
    first = agent_pb2.SessionRequest.FromString(again.opening.hello)
    first.connection = 2
    again.opening.hello = first.SerializeToString()
    await other.send(again)
    welcome = (await other.wait(1, "welcome")).welcome

    assert ("n1", 1) == (welcome.node_name, welcome.run)


async def test_signs_of_life_are_answered(
    server: Served, relay: HandRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that stands still is found out, and its stream ends."""
    await relay.send()
    assert 0 == len((await relay.call.read()).entries)
    monkeypatch.setattr(carrying, "LOOK_S", 0.01)
    silent = await HandRelay(server.channel).begin()

    code, text = await silent.ending()
    assert ("DEADLINE_EXCEEDED", True) == (code, text.startswith("nothing arrived for"))


async def test_faulty_relay_ends(server: Served) -> None:
    """One that does not say what it speaks, and one that uses a number twice."""
    stranger = HandRelay(server.channel)
    await stranger.send(opening(1))
    twice = await HandRelay(server.channel).begin()
    await twice.send(opening(1), opening(1))

    assert "INVALID_ARGUMENT" == (await stranger.ending())[0]
    code, text = await twice.ending()
    assert ("INVALID_ARGUMENT", True) == (code, text.startswith("entries.stream: must be higher"))


async def test_relay_has_a_limit(relay: HandRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of agents; who exceeds it may try again."""
    monkeypatch.setattr(limits, "STREAMS_PER_RELAY_MAX", 2)
    await relay.join((1, 2))
    await relay.send(opening(3, "a3"))
    end = await relay.wait(3, "end")

    assert 8 == end.code
    assert "the limit of 2 agents of one relay is reached; try again in 5.0 s" == end.text
