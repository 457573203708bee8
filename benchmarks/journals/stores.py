"""The stores of a journal that are compared, and a coordinator with each."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from crashes.lives import Disk
from journals.etcd import Etcd, running
from rallypoint.client.aio import AsyncClient
from rallypoint.server.etcd.address import parse_address
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.journal.etcd.layout import decode_head
from rounds import STEP_S_MAX, server

MEMBERS = {"etcd": 3, "etcd-1": 1}
"""Of the cluster of each store that is in etcd."""
STORES = ("memory", "sqlite", *MEMBERS)
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """A journal with nothing in it."""

    state: str
    """As for --state."""
    pids: tuple[int, ...] = ()
    """Of the processes of its store."""

    @property
    def is_shared(self) -> bool:
        """Return whether several coordinators can use it."""
        return self.state.startswith("etcd:")

    async def appends(self) -> int:
        """Return how many batches were acknowledged so far."""
        if not self.is_shared:
            return Disk(self.state).appends()
        client = EtcdClient(parse_address(self.state))
        try:
            shards = f"{client.address.prefix}/shards/".encode()
            found = await client.range(shards, shards[:-1] + b"0")
            heads = [pair.value for pair in found.found if pair.key.endswith(b"/head")]
            return sum(decode_head(value, 0).next for value in heads)
        finally:
            await client.close()


@dataclass(slots=True)
class Stores:
    """Makes places; the clusters of etcd start at their first use, and serve all of them."""

    _folder: Path
    _stack: ExitStack
    _clusters: dict[str, Etcd] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def make(self, store: str) -> Place:
        """Return a new place of a kind."""
        number = next(self._numbers)
        if store == "memory":
            return Place(store)
        if store == "sqlite":
            return Place(f"sqlite:{self._folder}/{number}/journal.sqlite")
        if store not in self._clusters:
            cluster = running(self._folder / store, MEMBERS[store])
            self._clusters[store] = self._stack.enter_context(cluster)
        etcd = self._clusters[store]
        return Place(etcd.state(f"/benchmark-{number}"), etcd.pids)


@contextmanager
def stores() -> Iterator[Stores]:
    """Yield what makes places; afterwards everything in them is removed."""
    with tempfile.TemporaryDirectory(prefix="journal-") as folder, ExitStack() as stack:
        yield Stores(Path(folder), stack)


@asynccontextmanager
async def coordinator(place: Place, *flags: str) -> AsyncIterator[tuple[int, int]]:
    """Run a coordinator that forms rounds at once; yield its port and its pid."""
    binary = Path(sys.executable).with_name("coordinator")
    address = ("--host", "127.0.0.1", "--port", "0")
    quiet = ("--log-level", "error", "--startup-window", "0")
    async with server(str(binary), *address, *quiet, "--state", place.state, *flags) as started:
        yield started


async def await_owners(ports: Sequence[int]) -> dict[int, int]:
    """Wait until each shard is served, each coordinator with its share; return the ports of all.

    Args:
        ports: of the coordinators of one store, on this machine.
    """
    async with asyncio.timeout(STEP_S_MAX):
        while True:
            async with AsyncClient(f"127.0.0.1:{ports[0]}") as client:
                shards = (await client.get_coordinator()).coordinator.shards
            owners = {
                one.number: int(one.owner.rpartition(":")[2]) if one.owner else ports[0]
                for one in shards
                if one.served
            }
            shares = [list(owners.values()).count(port) for port in ports]
            if len(owners) == len(shards) and max(shares) - min(shares) <= 1:
                return owners
            await asyncio.sleep(POLL_S)
