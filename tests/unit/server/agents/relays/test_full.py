"""A shard without room for what agents say holds up no agent of another shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import grpc.aio
import pytest

from rallypoint.server.access.tokens import WorkerTokens
from rallypoint.server.access.usage.peers import Peers
from rallypoint.server.agents import connections
from rallypoint.server.agents.connections import Connections, Ended, note_ends
from rallypoint.server.agents.envelopes import Envelopes
from rallypoint.server.agents.relays import carrying, room, seats
from rallypoint.server.agents.relays.carrying import Carrying
from rallypoint.server.agents.relays.seats import ServingShard
from rallypoint.server.core.messages import inputs
from rallypoint.server.shell import inbox
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.durations import set_ms
from support.core.shell import Shell
from support.relays.carried import Entry, beat, envelope, opening

LIMIT_S = 10


class HandContext:
    """The context of a relay's call: a test reads and writes it."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.written: asyncio.Queue[agent_pb2.RelayResponse] = asyncio.Queue()
        self.may_write = asyncio.Event()
        self.may_write.set()

    def peer(self) -> str:
        return "ipv4:10.0.0.1:4711"

    async def read(self) -> Any:
        return await self.said.get()

    async def write(self, response: agent_pb2.RelayResponse) -> None:
        await self.may_write.wait()
        self.written.put_nowait(response)


class Seated:
    """A relay whose agents' jobs are named for their shards."""

    def __init__(self, shells: dict[str, Shell]) -> None:
        self.shells = shells
        self.context = HandContext()
        self.peers = Peers()
        self.read: list[agent_pb2.RelayedResponse] = []
        tokens = WorkerTokens("c")
        self.places = {
            name: ServingShard(
                Connections(
                    one.coordinator,
                    one.outboxes,
                    one.state,
                    Envelopes(one.outboxes, one.state, tokens),
                    self.peers,
                )
            )
            for name, one in shells.items()
        }
        context: Any = self.context
        self.carrying = Carrying(context, self.peers, lambda first: self.places[first.hello.job_id])

    def send(self, *entries: Entry) -> None:
        self.context.said.put_nowait(agent_pb2.RelayRequest(entries=entries))

    async def wait(self, stream: int, kind: str) -> Any:
        """Return the next entry for an agent of this kind: a field of an envelope, or `end`."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for entry in self.read:
                    found = _find(entry, kind)
                    if entry.stream == stream and found is not None:
                        self.read.remove(entry)
                        return found
                self.read += (await self.context.written.get()).entries


def _find(entry: agent_pb2.RelayedResponse, kind: str) -> Any:
    if kind == "end":
        return entry.end if entry.HasField("end") else None
    message = agent_pb2.SessionResponse.FromString(entry.message)
    return message if message.WhichOneof("message") == kind else None


@asynccontextmanager
async def seated(*names: str) -> AsyncIterator[Seated]:
    """Serve a relay at shards with these names; the test runs them."""
    made = Seated({name: Shell() for name in names})
    made.context.said.put_nowait(agent_pb2.RelayRequest(protocol_version=1))
    async with asyncio.timeout(3 * LIMIT_S), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(made.carrying.run())
        try:
            yield made
        finally:
            made.context.may_write.set()
            made.context.said.put_nowait(grpc.aio.EOF)
        await serving


UNAVAILABLE = 14


@pytest.fixture
async def rack(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Seated]:
    monkeypatch.setattr(carrying, "LOOK_S", 60.0)  # this relay shows no life by itself
    monkeypatch.setattr(inbox, "INBOX_MAX", 1)
    monkeypatch.setattr(room, "WAITS_S_MAX", 0.01)
    monkeypatch.setattr(room, "PERIOD_S", 60.0)
    monkeypatch.setattr(connections, "BROKEN_S_MAX", 0.01)
    async with seated("stands", "works") as made:
        yield made


@contextmanager
def working(shell: Shell) -> Iterator[None]:
    """Let the shard take turns."""
    task = asyncio.ensure_future(shell.coordinator.run())  # noqa: TID251  # it ends here
    try:
        yield
    finally:
        task.cancel()


@contextmanager
def standing(shell: Shell) -> Iterator[None]:
    """Let its journal stand still."""
    continues, append = asyncio.Event(), shell.journal.append

    async def wait(records: Any, now_ms: int) -> None:
        await continues.wait()
        await append(records, now_ms)

    shell.journal.append = wait  # type: ignore[method-assign]
    try:
        yield
    finally:
        continues.set()


async def give_turns() -> None:
    """Let what would follow at once have its turn."""
    for _ in range(100):
        await asyncio.sleep(0)


def broken(shell: Shell, number: int) -> Ended:
    """Return an end of a stream that a shard does not know."""
    peer = shell.peer("works", number)
    return Ended(shell.coordinator, inputs.Broken(peer.sender()))


async def test_full_inbox_ends_its_own_agents_alone(rack: Seated) -> None:
    """One report finds room and the next ones do not: a neighbour elsewhere is answered."""
    with working(rack.shells["works"]):
        rack.send(
            opening(1, "stands"),
            opening(2, "stands"),
            opening(3, "stands"),
            opening(4, "works"),
            beat(4),
        )
        ends = [await rack.wait(number, "end") for number in (2, 3)]
        answer = await rack.wait(4, "acknowledgement")

    assert [UNAVAILABLE] * 2 == [end.code for end in ends]
    assert {"the coordinator has more to do than it can; the agent tries again"} == {
        end.text for end in ends
    }
    assert 1 == answer.acknowledgement.heartbeat


async def test_report_without_room_ends_its_agent(rack: Seated) -> None:
    """What it says after that is not passed on: something before it is missing."""
    shell = rack.shells["stands"]
    with working(shell):
        rack.send(opening(1, "stands"))
        epoch = (await rack.wait(1, "welcome")).epoch
        with standing(shell):
            rack.send(*(opening(number, "stands") for number in range(2, 10)))
            await rack.wait(9, "end")
            leaving = agent_pb2.Leaving(round=1)
            report = envelope(1, epoch=epoch, sequence=1, leaving=leaving)
            rack.send(Entry(stream=1, message=report), beat(1))

            assert UNAVAILABLE == (await rack.wait(1, "end")).code
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await rack.wait(1, "acknowledgement")


async def test_ends_of_other_shards_are_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard without room uses up its own time, not that of the next one."""
    monkeypatch.setattr(inbox, "INBOX_MAX", 1)
    monkeypatch.setattr(connections, "BROKEN_S_MAX", 0.01)
    stands, works = Shell(), Shell()
    ends = [broken(stands, number) for number in (1, 2, 3)]
    await note_ends([*ends, broken(works, 4)])

    assert works.coordinator._inbox._items.full()


async def test_late_end_is_noted_when_there_is_room(rack: Seated) -> None:
    """No one waits for it, and no other end waits for it."""
    shell, other = rack.shells["stands"], rack.shells["works"]
    late, ends = room.LateEnds(), [broken(shell, 1), broken(shell, 2)]
    for one in (*ends, None, broken(other, 3)):
        late.note(one)

    assert ends[1:] == late.late
    assert other.coordinator._inbox._items.full()
    async with asyncio.timeout(LIMIT_S):
        assert [ends[0].broken] == await shell.coordinator._inbox.get(None)
        async with asyncio.TaskGroup() as tasks:
            noting = tasks.create_task(late.run())
            assert [ends[1].broken] == await shell.coordinator._inbox.get(None)
            noting.cancel()


async def test_refused_agents_wait_for_the_writer(
    rack: Seated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that does not read can open no end of streams that are refused."""
    monkeypatch.setattr(seats, "ENDS_MAX", 2)
    rack.context.may_write.clear()
    for number in range(1, 10):
        rack.send(Entry(stream=number, opening=agent_pb2.RelayedOpening()))
    await give_turns()
    waiting = rack.carrying._seats._ends

    assert len(waiting) <= 2
    assert not rack.context.said.empty()
    rack.context.may_write.set()
    assert "opening.hello: must not be empty" == (await rack.wait(9, "end")).text


async def test_short_lease_of_one_job_ends_no_relay(rack: Seated) -> None:
    """A relay that pauses for longer than the shortest lease of its agents keeps its stream."""
    short = opening(1, "stands")
    hello = agent_pb2.SessionRequest.FromString(short.opening.hello)
    set_ms(hello.hello.spec.heartbeat_interval, 500)
    set_ms(hello.hello.spec.lease, 1_500)
    short.opening.hello = hello.SerializeToString()
    with working(rack.shells["stands"]), working(rack.shells["works"]):
        rack.send(short, opening(2, "works"))
        for number in (1, 2):
            await rack.wait(number, "welcome")
        rack.context.may_write.clear()
        rack.send(beat(2))
        with suppress(TimeoutError):
            async with asyncio.timeout(1.8):
                rack.read += (await rack.context.written.get()).entries
        rack.context.may_write.set()

        assert (await rack.wait(2, "acknowledgement")).acknowledgement.heartbeat == 1


async def test_heartbeat_during_an_explanation_is_answered(
    rack: Seated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives after the explanation, and before the answer is sent: that answers both."""
    waits = opening(1, "works")
    hello = agent_pb2.SessionRequest.FromString(waits.opening.hello)
    hello.hello.spec.min_nodes = hello.hello.spec.max_nodes = 2
    waits.opening.hello = hello.SerializeToString()
    real = Coordinator.read

    async def read(self: Coordinator, answer: Any) -> Any:
        explained = await real(self, answer)
        seat = rack.carrying._seats.find(1)
        assert seat is not None
        outbox = seat.connection.outbox
        asyncio.get_running_loop().call_soon(outbox.acknowledge_heartbeat, 2)
        return explained

    with working(rack.shells["works"]):
        rack.send(waits)
        await rack.wait(1, "welcome")
        monkeypatch.setattr(Coordinator, "read", read)
        rack.send(beat(1))
        answer = (await rack.wait(1, "acknowledgement")).acknowledgement

    assert (2, True) == (answer.heartbeat, answer.HasField("waiting"))
