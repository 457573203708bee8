"""All coordinators of a seed that share a store, the etcd that they share, and its network.

It knows for every shard who owns it by what etcd has. No coordinator is asked for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.shards import shard_of
from rallypoint.server.etcd.claims import Claim, owner_key
from rallypoint.server.etcd.values import Change, Condition, Granted, Operation, Outcome, Put
from rallypoint.server.journal.codec.batches import Batch, decode_batch
from rallypoint.server.journal.etcd.layout import decode_head, generation_prefix, head_key
from sim.rules.rules import Violation
from sim.shards.chaos import OwnerChaos
from sim.shards.client import PREFIX, SimClient
from sim.shards.etcd import Etcd
from sim.shards.faults import TTL_S, AppendFault, draw_rates
from sim.shards.member import Member
from sim.shards.rules import OwnersAreOne
from sim.shells.loop import Loop

if TYPE_CHECKING:
    from sim.shards.server import ShardServer
    from sim.world.world import World

LIVE = f"{PREFIX}/live/".encode()
OWNERS = LIVE + b"owners/"
BURIALS_MAX = 50
SLOW_MS = (5, 60, 400, 3_000)
LAG_MS = 3_000


class Fleet:
    """The coordinators, and etcd."""

    ttl_s = TTL_S

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = Random(f"{world.seed} owners")
        self.rates = draw_rates(self.rng)
        self.shard_count = self.rates.shards
        self.lost_percent = self.rates.lost_percent
        self.slow_percent = self.rates.slow_percent
        self.etcd = Etcd()
        self.etcd.remember(LIVE)
        self.etcd.watch(OWNERS, 1, self._owners_changed)
        self.is_over = False
        """The seed has ended."""
        self.is_instant = False
        """Calls of etcd take no time, at this moment."""
        self.armed: AppendFault | None = None
        """What the next append meets."""
        self.down_until_ms = self.lag_until_ms = 0
        self.members: dict[str, Member] = {}
        """The latest process at each address; it may be gone."""
        self.loops: list[Loop] = []
        self.latest: dict[int, ShardServer] = {}
        """The latest owner of each shard that has begun."""
        self.rule = world.safety.find(OwnersAreOne)
        self.addresses = tuple(f"c{number}:50051" for number in range(self.rates.members))
        self._leases = 0
        self._skews: dict[str, int] = {}
        for address in self.addresses:
            self.join(address)
        self.chaos = OwnerChaos(self)

    # --- processes ---

    def join(self, address: str) -> None:
        """Start a process where none is."""
        found = self.members.get(address)
        if self.is_over or (found is not None and not found.is_gone):
            return
        skew_ms = self.rates.skew_ms
        skew_ms = self._skews.setdefault(address, self.rng.randint(0, skew_ms) if skew_ms else 0)
        self.world.was_set_back = self.world.was_set_back or bool(skew_ms)
        self.world.note("joins", address)
        self.members[address] = Member(self, address, skew_ms)

    def living(self) -> list[Member]:
        """Return the processes that live, frozen or not."""
        return [one for one in self.members.values() if not one.is_gone]

    def kill(self, member: Member, *, is_dark: bool) -> None:
        """Kill a process; another one begins at its address after a while."""
        if member.is_gone:
            return
        self.world.note("killed", member.address)
        self.shake_all()
        member.kill(is_dark=is_dark)
        self.chaos.return_later(member.address)

    def left(self, member: Member) -> None:
        """Note that a process has ended in order."""
        self.world.note("left", member.address)
        self.world.coverage.counts["owners", "left"] += 1
        member.is_gone = True
        member.loop.is_dead = True
        for server in member.servers.values():
            server.die()
        member.close_streams(is_dark=False)
        self.chaos.return_later(member.address)

    def freeze(self, member: Member) -> None:
        """Suspend a process for a while."""
        self.chaos.freeze(member)

    def fail(self, error: BaseException) -> None:
        """Fail the seed: raised in a task, an error could be handled as a failure of etcd."""
        if self.is_over:
            return
        if not isinstance(error, Violation | BrokenInvariant | AssertionError):
            error = AssertionError(f"{error!r}")
        self.world.clock.after(0, partial(_raise, error))

    def _owners_changed(self, changes: tuple[Change, ...]) -> None:
        """End the owners, for those who judge, whose keys are gone."""
        for change in changes:
            server = self.latest.get(int(change.pair.key.rpartition(b"/")[2]))
            if change.is_deleted and server is not None:
                self.guarded(server.end)

    def guarded(self, call: Callable[[], None]) -> None:
        """Call something whose errors must fail the seed."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  # raised outside of the task
            self.fail(error)

    # --- shards ---

    def jobs_of(self, shard: int) -> list[JobId]:
        """Return the jobs of a shard."""
        return [job.job_id for job in self.world.jobs if self.shard_of(job.job_id) == shard]

    def shard_of(self, job_id: JobId) -> int:
        """Return the shard of a job."""
        return shard_of(job_id, self.shard_count)

    def server_of(self, job_id: JobId) -> ShardServer | None:
        """Return who serves a job and is sure of that."""
        shard = self.shard_of(job_id)
        found = [server for one in self.living() if (server := one.find(shard)) is not None]
        return found[0] if found else None

    def started(self, server: ShardServer, before: ShardServer | None) -> None:
        """Note that a shard has been loaded."""
        shard = server.claim.shard
        self.world.note("shard started", shard, server.member.address, server.state.epoch)
        self.world.coverage.counts["owners", "shard started"] += 1
        self.latest[shard] = server
        if before is not None:
            self.world.safety.restored(before, server)

    def shown(self, server: ShardServer, what: str) -> None:
        """Check that who shows something owns its shard, by what etcd has."""
        self.rule.shown(server, what, self.is_current(server.claim))

    def is_current(self, claim: Claim) -> bool:
        """Return whether a claim holds, by what etcd has."""
        pair = self.etcd.keys.get(owner_key(PREFIX, claim.shard))
        return pair is not None and pair.created == claim.revision

    def is_writing(self, shard: int, created: int) -> bool:
        """Return whether an owner writes, by its claim."""
        server = self.latest.get(shard)
        is_its = server is not None and server.claim.revision == created
        return is_its and server is not None and server.writes.is_under_way

    def read(self, shard: int) -> list[Batch]:
        """Return everything that is journalled of a shard, oldest first."""
        pair = self.etcd.keys.get(head_key(PREFIX, shard))
        if pair is None:
            return []
        prefix = generation_prefix(PREFIX, shard, decode_head(pair.value, shard).generation)
        parts: dict[bytes, bytes] = {}
        for key in sorted(one for one in self.etcd.keys if one.startswith(prefix)):
            batch = key.rpartition(b"/")[0]
            parts[batch] = parts.get(batch, b"") + self.etcd.keys[key].value
        return [decode_batch(payload) for payload in parts.values()]

    def shake_all(self) -> None:
        """Tell the rules that something is about to happen that no worker should notice."""
        for server in self.latest.values():
            server.shake()

    # --- etcd ---

    def transact(
        self,
        client: SimClient,
        asked_ms: int,
        conditions: Sequence[Condition],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> Outcome:
        """Do a transaction of a process."""
        claim = client.claim
        is_current = claim is None or self.is_current(claim)
        owners = {shard: self._owner(shard) for shard in self.latest}
        outcome = self.etcd.transact(conditions, then, otherwise)
        self.guarded(partial(self._judge, client, asked_ms, outcome, is_current, then))
        for shard, created in owners.items():
            if created and not self._owner(shard):
                is_writing = self.is_writing(shard, created)
                release = partial(self.rule.released, shard, created, is_writing=is_writing)
                self.guarded(release)
        return outcome

    def _judge(
        self,
        client: SimClient,
        asked_ms: int,
        outcome: Outcome,
        is_current: bool,
        then: Sequence[Operation],
    ) -> None:
        claim = client.claim
        if claim is None:
            return
        self.rule.wrote(claim, asked_ms, is_done=outcome.is_done, is_current=is_current)
        server = self.latest.get(claim.shard)
        key = head_key(PREFIX, claim.shard)
        is_head = any(isinstance(one, Put) and one.key == key for one in then)
        if outcome.is_done and is_head and server is not None and server.claim == claim:
            server.writes.taken()

    def _owner(self, shard: int) -> int:
        pair = self.etcd.keys.get(owner_key(PREFIX, shard))
        return 0 if pair is None else pair.created

    def grant(self, ttl_s: int) -> Granted:
        """Begin a lease, which ends by the clock of etcd."""
        self._leases += 1
        ttl_ms = self.rates.ttl_ms * ttl_s // TTL_S
        self.etcd.grant(self._leases, ttl_ms, self.world.clock.now_ms)
        self._check_later(self._leases)
        return Granted(self._leases, ttl_s, self.etcd.term)

    def renew(self, member: Member, lease: int) -> Granted:
        """Renew a lease; a leader that is one no more confirms that as well."""
        now_ms = self.world.clock.now_ms
        if member.stale_until_ms > now_ms and lease in self.etcd.leases:
            self.world.coverage.counts["owners", "renewed by an old leader"] += 1
            return Granted(lease, self.ttl_s, self.etcd.term - 1)
        renewed = self.etcd.renew(lease, now_ms)
        return Granted(lease, self.ttl_s if renewed.ttl_s else 0, renewed.term)

    def revoke(self, lease: int) -> None:
        """End a lease."""
        self.etcd.revoke(lease)

    def _check_later(self, lease: int) -> None:
        held = self.etcd.leases[lease]
        self.world.clock.at(held.ends_ms, partial(self._check, lease))

    def _check(self, lease: int) -> None:
        """End a lease that is over, perhaps late, and not while etcd is down."""
        held, now_ms = self.etcd.leases.get(lease), self.world.clock.now_ms
        if held is None or self.is_over:
            return
        if held.ends_ms > now_ms:
            self._check_later(lease)
            return
        late_ms = self.rng.randint(0, self.rates.late_ms_max)
        at_ms = max(now_ms + late_ms, self.down_until_ms)
        self.world.clock.at(at_ms, partial(self._expire, lease))

    def _expire(self, lease: int) -> None:
        held, now_ms = self.etcd.leases.get(lease), self.world.clock.now_ms
        if held is None:
            return
        if held.ends_ms > now_ms:  # a new leader counts it afresh
            self._check_later(lease)
            return
        self.world.coverage.counts["owners", "lease ended"] += 1
        self.world.note("lease ended", lease)
        self.etcd.revoke(lease)

    # --- the network between them and etcd ---

    def cut_until_ms(self, member: Member) -> int:
        """Return until when nothing passes between a process and etcd."""
        return max(member.etcd_back_ms, self.down_until_ms)

    def latency_ms(self) -> int:
        """Return how long a message to or from etcd takes."""
        return self.rng.randint(0, self.rates.latency_ms_max)

    def watch_ms(self) -> int:
        """Return how long a change takes to be seen."""
        is_slow = self.lag_until_ms > self.world.clock.now_ms
        return self.rng.randint(0, LAG_MS if is_slow else self.rates.watch_ms_max)

    def slow_ms(self) -> int:
        """Return how long an append takes that is slow."""
        return self.rng.randint(1, self.rng.choice(SLOW_MS))

    def happens(self, percent: int) -> bool:
        """Return whether something with this probability happens now."""
        return percent > 0 and self.rng.random() * 100 < percent

    def take_armed(self) -> AppendFault | None:
        """Return what an append meets, which is over with it."""
        fault, self.armed = self.armed, None
        if fault is not None:
            self.world.note("append", fault.value)
            self.world.coverage.counts["append", fault.value] += 1
            self.shake_all()
        return fault

    # --- the end ---

    def calm(self) -> None:
        """Mend everything, and let nothing go wrong any more."""
        self.armed = None
        self.lost_percent = 0
        self.down_until_ms = self.lag_until_ms = 0
        for address in self.addresses:
            self.join(address)
        for member in self.living():
            member.etcd_back_ms = member.answers_lost = member.stale_until_ms = 0

    def bury(self) -> None:
        """End all tasks of all processes, so that none ends later."""
        self.is_over = True
        for _ in range(BURIALS_MAX):
            left = [loop for loop in self.loops if loop.pending()]
            if not left:
                return
            for loop in left:
                loop.is_dead = False
                loop.wake_ns = 0
                _run(loop)  # a task that never began warns
                for task in loop.pending():
                    task.cancel()
                _run(loop)
        raise AssertionError([task for loop in self.loops for task in loop.pending()])


def _run(loop: Loop) -> None:
    """Run everything that is ready."""
    while loop.ready:
        loop.turn()


def _raise(error: BaseException) -> None:
    raise error
