"""What holds of the owners of shards, by what etcd has, and by nothing that an owner thinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.server.etcd.claims import Claim
from sim.rules.rules import Checker

if TYPE_CHECKING:
    from sim.shards.server import ShardServer
    from sim.world.server import Server
    from sim.world.world import World


class OwnersAreOne(Checker):
    """A shard is one coordinator's at a time, whatever the others think.

    * Who shows anything, an answer to a heartbeat included, owns the shard in etcd at that moment.
    * What etcd takes of a shard's journal is its owner's.
    * Who has released a shard has written everything before.
    * Every owner has a higher epoch than all before it.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._released: dict[tuple[int, int], int] = {}
        """When a transaction of the owner has released a claim."""
        self._epochs: dict[int, int] = {}
        """The highest epoch of each shard."""

    def shown(self, server: ShardServer, what: str, is_owner: bool) -> None:
        """A coordinator shows something."""
        text = f"{server.member.address} shows {what} of shard {server.claim.shard}"
        self.require(is_owner, f"{text}, which is not its own")
        self.world.coverage.counts["owners", "shown"] += 1

    def wrote(self, claim: Claim, asked_ms: int, *, is_done: bool, is_current: bool) -> None:
        """Etcd has done, or refused, a write to the journal of a shard."""
        text = f"shard {claim.shard} under the claim of revision {claim.revision}"
        self.require(is_current or not is_done, f"etcd took a write to {text}, which is over")
        released_ms = self._released.get((claim.shard, claim.revision))
        is_late = released_ms is not None and asked_ms > released_ms
        self.require(not is_late, f"a write to {text} begins after its release")
        if not is_current:
            self.world.coverage.counts["owners", "write refused"] += 1

    def released(self, shard: int, revision: int, *, is_writing: bool) -> None:
        """An owner has released a claim."""
        self._released[shard, revision] = self.world.clock.now_ms
        text = f"shard {shard} is released before its last append has ended"
        self.require(not is_writing, text)
        self.world.coverage.counts["owners", "released"] += 1

    def restored(self, before: Server, after: Server) -> None:
        if self.world.fleet is None:
            return
        epoch, last = after.state.epoch, self._epochs.get(after.life, before.state.epoch)
        self.require(epoch > last, f"epoch {epoch} after {last}")
        self._epochs[after.life] = epoch
