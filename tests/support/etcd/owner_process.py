"""An owner as a process, which tests freeze: it appends always, and notes what it was sure of.

It is careless on purpose: it appends to every shard that it has claimed, sure or not, until etcd
refuses. Its last line says what it has done.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress

from rallypoint.base import log
from rallypoint.server.etcd.address import parse_address
from rallypoint.server.etcd.claims import Claim
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.lease import now_s
from rallypoint.server.fleet.life import OwnershipConfig
from rallypoint.server.fleet.ownership import Ownership
from rallypoint.server.journal.etcd.log import ShardLog
from rallypoint.server.journal.interface import JournalFailed

POLL_S = 0.002


class Careless:
    """Serves shards by appending to their journals until etcd refuses."""

    def __init__(self, client: EtcdClient, name: str, tasks: asyncio.TaskGroup) -> None:
        self._client = client
        self._name = name
        self._tasks = tasks
        self.stored: dict[str, int] = {}
        """Number of batches that etcd has taken, for each claim."""
        self.refused = 0

    async def start(self, claim: Claim) -> None:
        log = ShardLog(self._client, self._client.address.prefix, claim)
        await log.open()
        self._tasks.create_task(self._append(log, claim))

    def halt(self, shard: int) -> None:
        """Continue: etcd has to notice."""

    async def stop(self, shard: int) -> None:
        """The same."""

    def load_of(self, shard: int) -> int:
        return 0

    async def _append(self, log: ShardLog, claim: Claim) -> None:
        key = f"{claim.shard} {claim.revision}"
        self.stored[key] = 0
        while True:
            number = self.stored[key] + 1
            batch = {"owner": self._name, "revision": claim.revision, "number": number}
            try:
                await log.append(json.dumps(batch).encode(), 1)
            except JournalFailed:
                self.refused += 1
                return
            self.stored[key] = number
            await asyncio.sleep(POLL_S)


async def main(address: str, name: str, shards: int, ttl_s: int) -> None:
    client = EtcdClient(parse_address(address))
    sure: dict[int, list[list[float]]] = {}
    async with asyncio.TaskGroup() as tasks:
        careless = Careless(client, name, tasks)
        config = OwnershipConfig(client.address.prefix, name, shards, ttl_s)
        ownership = Ownership(client, client.address.prefix)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ownership.leave)
        running = tasks.create_task(ownership.run(config, careless))
        shown = -1
        while not running.done():
            owned = 0
            for shard in range(shards):
                # The clock first: what is sure now was sure then, or the claim is newer.
                at_s = now_s()
                if ownership.owns(shard):
                    owned += 1
                    spans = sure.setdefault(shard, [])
                    if not spans or spans[-1][2]:
                        spans.append([at_s, at_s, 0.0])
                    spans[-1][1] = at_s
                elif sure.get(shard):
                    sure[shard][-1][2] = 1.0
            if owned != shown:
                print(f"owns {owned}", flush=True)
                shown = owned
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await asyncio.shield(running)
    done = {"sure": sure, "stored": careless.stored, "refused": careless.refused}
    print(json.dumps(done), flush=True)
    await client.close()


if __name__ == "__main__":
    log.configure(None)
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
