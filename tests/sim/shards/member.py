"""One process of a coordinator that owns shards: the real ownership, with simulated shards.

It has its own event loop, which is frozen with the process, and gets no turn after a kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from rallypoint.server.contract.errors import no_owner_status, not_owner_status
from rallypoint.server.core.memory.replay import replay
from rallypoint.server.etcd.claims import Claim
from rallypoint.server.etcd.errors import EtcdError
from rallypoint.server.fleet.life import OwnershipConfig
from rallypoint.server.fleet.ownership import Ownership
from rallypoint.server.journal.etcd.fleet import StoreIdentity
from rallypoint.server.journal.etcd.journal import EtcdJournal
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.shell.beginning import begin
from sim.durable.disk import IDENTITY, SECRET
from sim.durable.recovery import Past
from sim.shards.client import PREFIX, SimClient
from sim.shards.loop import MS_NS, Ticks
from sim.shards.server import ShardServer
from sim.shells.loop import new_loop

if TYPE_CHECKING:
    from google.rpc.status_pb2 import Status

    from sim.shards.fleet import Fleet


class Halted(Exception):
    """A shard was halted while it was loaded."""


class Member:
    """One process, until it is killed or has left."""

    def __init__(self, fleet: Fleet, address: str, skew_ms: int) -> None:
        self.fleet = fleet
        self.address = address
        self.skew_ms = skew_ms
        """How far its wall clock is ahead."""
        self.is_gone = False
        self.is_dark = False
        """Its host is dead too: attempts to connect get no answer."""
        self.frozen_until_ms = 0
        self.etcd_back_ms = 0
        """Until then nothing passes between it and etcd."""
        self.stale_until_ms = 0
        """Until then a leader that is one no more renews its lease, which is none."""
        self.answers_lost = 0
        """How many of the next answers get lost."""
        self.watch_stops: Callable[[], None] = lambda: None
        self.servers: dict[int, ShardServer] = {}
        """Shards that are served or halted, and not stopped yet."""
        self._loading: set[int] = set()
        self._unwanted: set[int] = set()
        clock = fleet.world.clock
        rng = Random(fleet.rng.getrandbits(48))
        self.loop = new_loop(Ticks(clock), address, rng)
        self.loop.wall_ahead_ns = skew_ms * MS_NS
        fleet.loops.append(self.loop)
        count = fleet.shard_count
        self._fixed = StoreIdentity(IDENTITY, SECRET, count)
        client: object = SimClient(self)
        self._config = OwnershipConfig(PREFIX, address, count, fleet.ttl_s)
        self.ownership = Ownership(client, PREFIX)  # type: ignore[arg-type]  # a stand-in
        self._task = self.loop.create_task(self._live())

    async def _live(self) -> None:
        try:
            await self.ownership.run(self._config, self)
        except Exception as error:  # noqa: BLE001  # the seed fails with it
            self.fleet.fail(error)
        if not self.fleet.is_over:
            self.fleet.left(self)

    # --- what others see ---

    @property
    def is_frozen(self) -> bool:
        """Whether the process is suspended."""
        return self.frozen_until_ms > self.fleet.world.clock.now_ms

    def find(self, shard: int) -> ShardServer | None:
        """Return a shard, as `Host.find` does."""
        server = self.servers.get(shard)
        is_served = server is not None and not server.is_halted and self.ownership.owns(shard)
        return server if is_served else None

    def refer(self, shard: int) -> Status:
        """Return how the stream of an agent ends whose shard is not served here."""
        address = self.ownership.owner_of(shard)
        if address is None:
            return no_owner_status(shard, self.ownership.trouble())
        return not_owner_status(address, IDENTITY)

    def loses_answer(self) -> bool:
        """Return whether the answer to an attempt gets lost."""
        if self.answers_lost:
            self.answers_lost -= 1
            return True
        return self.fleet.happens(self.fleet.lost_percent)

    # --- faults ---

    def kill(self, *, is_dark: bool) -> None:
        """End the process."""
        self.is_gone, self.is_dark = True, is_dark
        self.loop.is_dead = True
        self.watch_stops()
        for server in self.servers.values():
            server.die()
        self.close_streams(is_dark=is_dark)

    def close_streams(self, *, is_dark: bool) -> None:
        """Reset every stream of the process, or leave its peers in the dark."""
        network, rng = self.fleet.world.network, self.fleet.world.rng
        for stream in list(network.streams):
            if stream.member is self:
                agent_ms = None if is_dark else rng.randint(0, 10)
                network.cut(stream, server_ms=None, agent_ms=agent_ms)

    def freeze(self, duration_ms: int, noticed_ms: int) -> None:
        """Suspend the process; afterwards its shards notice for how long, roughly."""
        self.frozen_until_ms = self.fleet.world.clock.now_ms + duration_ms
        self.loop.freeze(duration_ms * MS_NS)
        for server in self.servers.values():
            server.stall(duration_ms, noticed_ms)

    def cut(self, duration_ms: int) -> None:
        """Let nothing pass between it and etcd for a while."""
        self.etcd_back_ms = self.fleet.world.clock.now_ms + duration_ms
        self.watch_stops()

    def leave(self) -> None:
        """Get SIGTERM."""
        self.loop.call_soon(self.ownership.leave)

    # --- what its ownership asks for ---

    async def start(self, claim: Claim) -> None:
        """Load a shard and serve it."""
        shard = claim.shard
        self._loading.add(shard)
        try:
            await self._load(claim)
        except (JournalFailed, EtcdError, Halted):
            raise
        except Exception as error:
            self.fleet.fail(error)
            raise
        finally:
            self._loading.discard(shard)
            self._unwanted.discard(shard)

    async def _load(self, claim: Claim) -> None:
        world, shard = self.fleet.world, claim.shard
        client: object = SimClient(self, claim)
        journal = EtcdJournal(client, self._fixed, claim, self.unix_ms)  # type: ignore[arg-type]
        begun = await begin(journal, world.timing, listens=True)
        if shard in self._unwanted:
            await journal.close()
            raise Halted(f"shard {shard} was halted while it was loaded")
        if not self.fleet.is_current(claim):
            return  # the claim has ended, and nothing here has noticed it yet
        before = self.fleet.latest.get(shard)
        batches = self.fleet.read(shard)
        memory = replay(record for batch in batches for record in batch.records)
        now_ms, contacts = begun.clock.now_ms(), None
        if before is not None:
            before.end()
            contacts = before.take_contacts(now_ms)
        past = Past(begun.state, memory, shard + 1, now_ms, contacts)
        server = ShardServer(self, claim, journal, past)
        self.servers[shard] = server
        self.fleet.started(server, before)
        if self.is_frozen:
            server.stall(self.frozen_until_ms - world.clock.now_ms, 0)

    def unix_ms(self) -> int:
        """Return the wall clock of its machine."""
        return self.fleet.world.unix_ms() + self.skew_ms

    def halt(self, shard: int) -> None:
        """Answer nothing more about a shard."""
        if shard in self._loading:
            self._unwanted.add(shard)
        if shard in self.servers:
            self.servers[shard].halt()

    async def stop(self, shard: int) -> None:
        """Return when nothing is written any more."""
        server = self.servers.pop(shard, None)
        if server is not None:
            await server.journal.close()

    def load_of(self, shard: int) -> int:
        """Return the number of nodes."""
        found = self.find(shard)
        return 0 if found is None else len(found.state.nodes)

    def failed(self, shard: int, why: str) -> None:
        """Note that a shard has failed by itself, as `Host` does."""
        self.loop.call_soon(self._drop, shard, why)

    def _drop(self, shard: int, why: str) -> None:
        self.halt(shard)
        self.ownership.drop(shard, why)

    def bury(self) -> list[asyncio.Task[None]]:
        """Return the tasks that have not ended."""
        return self.loop.pending()
