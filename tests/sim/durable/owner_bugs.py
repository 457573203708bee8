"""Planted bugs of coordinators that own shards: in leases, logs, starts and hand-overs."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rallypoint.server.etcd import lease
from rallypoint.server.etcd.lease import Lease
from rallypoint.server.etcd.values import Condition, Target
from rallypoint.server.fleet import life, ownership
from rallypoint.server.journal.etcd import journal
from rallypoint.server.journal.etcd import log as shard_log
from rallypoint.server.shell import beginning
from sim.seeds.planting import Bug, Patch
from sim.shards.writes import ShardWrites

NOTHING = b"/nothing"


def _append_unconditionally() -> list[Patch]:
    """Write to the journal of a shard whatever owns it."""

    def always(key: bytes, target: Target, number: int) -> Condition:
        return Condition(NOTHING, Target.CREATED, 0)

    class Unconditional(shard_log.ShardLog):
        def __init__(self, client: Any, prefix: str, claim: Any) -> None:
            super().__init__(client, prefix, claim)
            self._claim: Any = _Claim(claim)

    return [(shard_log, "Condition", always), (journal, "ShardLog", Unconditional)]


class _Claim:
    """A claim without conditions."""

    conditions: tuple[Condition, ...] = ()

    def __init__(self, claim: Any) -> None:
        self.shard, self.key, self.revision = claim.shard, claim.key, claim.revision


def _answer_after_the_lease() -> list[Patch]:
    """Do not look at the lease before an answer."""

    def owns(own: Any, shard: int) -> bool:
        return own._life is not None and shard in own._life.serving

    return [(ownership.Ownership, "owns", owns)]


def _be_sure_too_long() -> list[Patch]:
    """Count on a lease for longer than etcd does."""
    return [(lease, "MARGIN_S", -0.5)]


def _believe_an_old_leader() -> list[Patch]:
    """Take a renewal for one that most members have confirmed."""

    async def renew(held: Any, key: bytes, limit_s: float) -> None:
        asked_s = lease.now_s()
        renewed = await held._client.keep_alive(held.id, limit_s=limit_s, attempt_s=0.5)
        if renewed.ttl_s <= 0:
            raise lease.LeaseLost("the lease in etcd has ended")
        held._sure_until_s = asked_s + renewed.ttl_s - lease.MARGIN_S

    return [(Lease, "_renew", renew)]


def _use_an_epoch_again() -> list[Patch]:
    """Begin with the epoch of the owner before."""
    real: Any = beginning.__dict__["restore"]

    def restore(memory: Any, *, epoch: int, **how: Any) -> Any:
        restored = real(memory, epoch=epoch, **how)
        restored.state.epoch = memory.epoch
        first, *rest = restored.records
        restored.records[:] = [replace(first, epoch=memory.epoch), *rest]
        return restored

    return [(beginning, "restore", restore)]


def _hand_over_early() -> list[Patch]:
    """Release a shard while its last append is under way."""

    async def stop(life: Any, shard: int) -> None:
        life._shards.servers.pop(shard, None)

    return [(life.Life, "_stop", stop)]


def _show_before_the_append() -> list[Patch]:
    """Carry out what a turn has decided before etcd has it."""
    real = ShardWrites.lose

    def lose(writes: ShardWrites, turn: Any) -> None:
        owner = writes._owner
        owner.listeners.carry_out(turn.effects, turn.changed, turn.state)
        for stream in list(owner._streams.values()):
            owner._write(stream)
        real(writes, turn)

    return [(ShardWrites, "lose", lose)]


OWNERS = frozenset({"OwnersAreOne"})
OWNER_BUGS: dict[str, Bug] = {
    "append unconditionally": (_append_unconditionally, OWNERS | {"RestoredIsWhole", "crash"}),
    "answer after the lease": (_answer_after_the_lease, OWNERS),
    "be sure too long": (_be_sure_too_long, OWNERS),
    "believe an old leader": (_believe_an_old_leader, OWNERS),
    "use the epoch of another owner": (_use_an_epoch_again, OWNERS | {"RestoredIsWhole"}),
    "hand over before the last append": (_hand_over_early, OWNERS),
    "show before the append": (
        _show_before_the_append,
        frozenset({"NumberMeansOneRound", "OrdersAreTrue", "ExitsClean", "NumbersOnlyGrow"}),
    ),
}
OWNER_OPTIONS: dict[str, dict[str, str]] = {name: {"owners": "1"} for name in OWNER_BUGS}
