"""Coordinators in this process, each behind a real gRPC server, and a table of owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import grpc
import grpc.aio
from msgspec import Struct

from rallypoint.server.access.protecting import UNPROTECTED, Protected
from rallypoint.server.core.model.shards import shard_of
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.etcd.claims import Claim
from rallypoint.server.fleet.host import Listening, hosting
from rallypoint.server.serving.shard import ShardSettings
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.wire.channel import client_options
from support.core.served import Agent
from support.journal.recording import RecordingJournal

STORE = "5" * 32
"""Identity of the store."""
SHARDS = 4


class Table:
    """What all coordinators know about owners: whatever a test says."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.owners: dict[int, str] = {}
        self.can_reach = True

    def change(self) -> None:
        """Let all learn what the table says now."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Seat:
    """The table as one coordinator sees it."""

    coordinator_id = STORE
    shard_count = SHARDS

    def __init__(self, table: Table) -> None:
        self.table = table
        self.address = ""
        self.believed: dict[int, str] = {}
        """Owners that it takes for those of the table, which it has not read yet."""
        self.sure = set[int]()
        """Shards that it may be sure of."""
        self.failed: list[int] = []
        """Shards that have halted by themselves."""

    @property
    def changed(self) -> asyncio.Event:
        return self.table.changed

    def is_sure(self) -> bool:
        return self.table.can_reach

    def trouble(self, shard: int | None = None) -> str:
        return "" if self.table.can_reach else "the table cannot be reached"

    def owns(self, shard: int) -> bool:
        return shard in self.sure

    def drop(self, shard: int, why: str) -> None:
        self.failed.append(shard)

    def owner_of(self, shard: int) -> str | None:
        address = self.believed.get(shard) or self.table.owners.get(shard)
        return None if address == self.address else address


class Member(Struct):
    """One coordinator, and a client's channel to it."""

    address: str
    listening: Listening
    seat: Seat
    channel: grpc.aio.Channel
    agents: list[Agent]
    """All agents: a call that is no longer referred to is cancelled."""

    def agent(self, job_id: str, number: int) -> Agent:
        """Return a new connection of an agent."""
        call = agent_grpc.AgentServiceStub(self.channel).Session()
        self.agents.append(Agent(call, job_id, f"{number:032x}"))
        return self.agents[-1]

    async def join(self, job_id: str, number: int) -> Agent:
        """Return an agent that runs a round."""
        agent = self.agent(job_id, number)
        await agent.hello()
        welcome = await agent.read()
        assert welcome.welcome.desired.HasField("run"), welcome
        agent.round = welcome.welcome.desired.run.header.number
        return agent


class Fleet:
    """Coordinators that share a store."""

    def __init__(
        self, members: list[Member], table: Table, journals: dict[int, RecordingJournal]
    ) -> None:
        self.members = members
        self.table = table
        self.journals = journals

    async def give(self, member: Member, *shards: int) -> None:
        """Let a member own shards; all know."""
        for shard in shards:
            await self.take(shard)
            member.seat.sure.add(shard)
            await member.listening.host.start(Claim(shard, b"", 0))
            self.table.owners[shard] = member.address
        self.table.change()

    async def take(self, shard: int) -> None:
        """Let a shard have no owner; all know."""
        owner = self.table.owners.pop(shard, None)
        for member in self.members:
            if member.address == owner:
                member.listening.host.halt(shard)
                await member.listening.host.stop(shard)
                member.seat.sure.discard(shard)
        self.table.change()


def jobs_of(shard: int, prefix: str = "job") -> Iterator[str]:
    """Yield ids of jobs of a shard."""
    return (job for job in (f"{prefix}-{n}" for n in count()) if shard_of(job, SHARDS) == shard)


def job_of(shard: int) -> str:
    """Return the id of a job of a shard."""
    return next(jobs_of(shard))


@asynccontextmanager
async def fleet(
    size: int = 2,
    timing: Timing = Timing(window_ms=0),  # noqa: B008
    protected: Sequence[Protected] = (),
) -> AsyncIterator[Fleet]:
    """Serve coordinators while the context is open. Shards are shared out one after another.

    Args:
        size: how many.
        timing: of all shards.
        protected: protection of each; those without one are not protected.
    """
    table = Table()
    journals = {number: RecordingJournal(STORE) for number in range(SHARDS)}
    async with AsyncExitStack() as stack:
        members = []
        for number in range(size):
            seat = Seat(table)
            listening = await stack.enter_async_context(
                hosting(
                    "127.0.0.1:0",
                    seat,
                    ShardSettings(timing, announces=False),
                    lambda claim: journals[claim.shard],
                    asyncio.get_running_loop().create_future(),
                    protected[number] if number < len(protected) else UNPROTECTED,
                )
            )
            address = seat.address = f"127.0.0.1:{listening.port}"
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(address, options=client_options())
            )
            members.append(Member(address, listening, seat, channel, []))
        made = Fleet(members, table, journals)
        for shard in range(SHARDS):
            await made.give(members[shard % size], shard)
        yield made


class Hanging(grpc.GenericRpcHandler):
    """A coordinator that takes calls and answers none."""

    def __init__(self) -> None:
        self.taken = asyncio.Semaphore(0)
        self.metadata: Any = ()
        """Of the last call."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def answer(request: bytes, context: object) -> None:
            self.metadata = details.invocation_metadata
            self.taken.release()
            await asyncio.Event().wait()

        is_watch = "/Watch" in details.method
        kind = grpc.unary_stream_rpc_method_handler if is_watch else None
        return (kind or grpc.unary_unary_rpc_method_handler)(answer)


@asynccontextmanager
async def hanging() -> AsyncIterator[tuple[str, Hanging]]:
    """Serve a coordinator that answers nothing; return its address too."""
    server, made = grpc.aio.server(), Hanging()
    server.add_generic_rpc_handlers((made,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", made
    finally:
        await server.stop(None)
