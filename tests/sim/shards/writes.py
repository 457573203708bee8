"""What the owner of a shard writes into etcd, by the rules of its shell: nothing is shown before.

A write that meets no fault happens at once, through the real log of the shard. One that does goes
its whole way: it is decided on a copy of the state, it is sent, and it counts when etcd takes it,
which may be later, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from rallypoint.server.core.memory.replay import memory_of, snapshot
from rallypoint.server.journal.codec.batches import encode_batch
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.shell.coordinator import LATE_MS
from sim.durable.writes import Writes
from sim.shards.faults import LONG, AppendFault
from sim.world.turns import Steps

if TYPE_CHECKING:
    from sim.shards.server import ShardServer

FOR_EVER_MS = 1 << 40
"""No turn is taken before a write has ended."""


class ShardWrites(Writes):
    """What one owner of a shard writes."""

    def __init__(self, server: ShardServer) -> None:
        super().__init__(server)
        self._owner = server
        self._waiting: list[Callable[[], None]] = []
        """Calls that have arrived while it writes."""
        self._foreseen: Steps | None = None
        """A turn that etcd has not taken yet."""
        self._decided: Steps | None = None
        """A turn that etcd has taken."""
        self.is_refused = False
        """A write has failed: no more turn comes."""
        self.sent_ms: int | None = None
        """Journal time of the turn that is being sent."""

    @property
    def loses(self) -> bool:
        member, fleet = self._owner.member, self._owner.member.fleet
        is_cut = fleet.cut_until_ms(member) > self._owner.world.clock.now_ms
        return is_cut or fleet.armed in LONG or fleet.happens(fleet.slow_percent)

    @property
    def is_under_way(self) -> bool:
        """Whether something was sent that etcd has not answered."""
        return self.sent_ms is not None and not self.is_refused

    def hold_up(self, deliver: Callable[[], None]) -> bool:
        if self.until_ms != FOR_EVER_MS:
            return super().hold_up(deliver)
        self._waiting.append(deliver)
        return True

    # --- the short way ---

    def write(self, turn: Steps) -> None:
        """Write what a turn has decided, at once; then, and only then, show it."""
        owner, fleet = self._owner, self._owner.member.fleet
        owner.world.coverage.wrote(turn.records)
        payload = encode_batch(turn.records, turn.now_ms, owner.member.unix_ms())
        self._do(owner.journal._log.append(payload, len(turn.records)))
        match fleet.take_armed():
            case AppendFault.CRASH_AFTER:
                fleet.kill(owner.member, is_dark=False)
            case AppendFault.SLOW:
                self._wait(turn, fleet.slow_ms())
            case AppendFault.COMPACT:
                records = snapshot(memory_of(owner.state))
                compacted = encode_batch(records, turn.now_ms, owner.member.unix_ms())
                self._do(owner.journal._log.replace([compacted], len(records)))
                owner.show(turn)
            case _:
                owner.show(turn)

    def _do(self, write: Coroutine[Any, Any, None]) -> None:
        """Do a write through the real log, in no time."""
        fleet = self._owner.member.fleet
        fleet.is_instant = True
        try:
            write.send(None)
        except StopIteration:
            return
        finally:
            fleet.is_instant = False
        raise AssertionError("it waits")

    # --- the long way ---

    def lose(self, turn: Steps) -> None:
        """Send what a turn would decide; it has happened when etcd takes it."""
        owner, fleet = self._owner, self._owner.member.fleet
        match fleet.take_armed():
            case AppendFault.CRASH_BEFORE:
                fleet.kill(owner.member, is_dark=False)
                return
            case AppendFault.FREEZE:
                fleet.freeze(owner.member)
            case AppendFault.LOSE_ANSWERS:
                owner.member.answers_lost = fleet.rng.randint(1, 8)
        owner.take_inbox()
        self._foreseen = turn
        self._send(turn)

    def try_in_vain(self, turn: Steps) -> bool:
        """Send what is decided after the end; return False if that is nothing."""
        if not turn.records or self.until_ms > self._owner.world.clock.now_ms:
            return False
        self._send(turn)
        return True

    def _send(self, turn: Steps) -> None:
        self.until_ms, self.sent_ms = FOR_EVER_MS, turn.now_ms
        self._owner.member.loop.create_task(self._append(turn))

    async def _append(self, turn: Steps) -> None:
        owner = self._owner
        try:
            await owner.journal.append(turn.records, turn.now_ms)
        except JournalFailed as failed:
            self.is_refused = True
            owner.world.note("append failed", owner.claim.shard, str(failed))
            owner.world.coverage.counts["owners", "append failed"] += 1
            owner.member.failed(owner.claim.shard, str(failed))
        else:
            owner.member.fleet.guarded(self._acknowledged)

    def taken(self) -> None:
        """Take the turn that was foreseen: etcd has taken it."""
        turn, self._foreseen = self._foreseen, None
        if turn is None:
            return
        self._decided = self._owner.take_again(turn)
        assert self._decided.records == turn.records, "a turn was decided in two ways"

    def _acknowledged(self) -> None:
        turn, self._decided = self._decided, None
        owner, clock = self._owner, self._owner.world.clock
        self.until_ms, self.sent_ms = clock.now_ms, None
        for deliver in self._waiting:
            clock.after(0, deliver)
        self._waiting.clear()
        if turn is None or owner.is_ended:
            return
        waited_ms = owner.now_ms() - turn.now_ms
        self.slow_ms += max(0, waited_ms)
        if waited_ms > LATE_MS:
            owner.hold_back(waited_ms)
        owner.show(turn)
        owner.look_soon()
