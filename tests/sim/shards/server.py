"""A shard that a coordinator serves: the simulated coordinator, with a journal in etcd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.server.contract.errors import ended_status
from rallypoint.server.core.messages import inputs
from rallypoint.server.etcd.claims import Claim
from rallypoint.server.journal.etcd.journal import EtcdJournal
from sim.durable.recovery import Past
from sim.shards.writes import ShardWrites
from sim.world.contacts import Contacts
from sim.world.network import Stream
from sim.world.server import PULSE_MS, Server
from sim.world.turns import Steps
from sim.world.wire import Hangup

if TYPE_CHECKING:
    from sim.shards.member import Member

TAKEOVER_MS = 8_000
"""A worker notices nothing for so long after a shard began to move: agents give up later."""


class ShardServer(Server):
    """One shard, in one process, under one claim."""

    writes: ShardWrites

    def __init__(self, member: Member, claim: Claim, journal: EtcdJournal, past: Past) -> None:
        self.member = member
        self.claim = claim
        self.journal = journal
        self.is_halted = False
        """It answers nothing more."""
        self._ended_ms: int | None = None
        """Journal time at which nothing that it does counts any more."""
        self._turn_ms: int | None = None
        """Journal time of the turn that etcd has just taken, which began before."""
        self._stalled_ms = 0
        """Journal time when it was suspended last."""
        world = member.fleet.world
        super().__init__(world, world.next_boot(), past, -member.skew_ms)

    def _new_writes(self) -> ShardWrites:
        return ShardWrites(self)

    def owns(self) -> bool:
        """Return whether it may answer, by its own judgement."""
        return self.member.find(self.claim.shard) is self

    # --- its end ---

    @property
    def is_ended(self) -> bool:
        """Whether it has ended for those who judge, whatever it thinks itself."""
        return self._ended_ms is not None

    def now_ms(self) -> int:
        if self._turn_ms is not None:
            return self._turn_ms
        return super().now_ms() if self._ended_ms is None else self._ended_ms

    def take_again(self, foreseen: Steps) -> Steps:
        self._turn_ms = foreseen.now_ms
        try:
            return super().take_again(foreseen)
        finally:
            self._turn_ms = None

    def end(self) -> None:
        """Let nothing count any more that it does: it is killed, halted, or another one begins."""
        if self._ended_ms is None:
            self._ended_ms = self._known_ms()
            self.world.safety.crashed(self)
            self.world.keys.coordinator_gone(self)

    def _known_ms(self) -> int:
        """Return the latest journal time that anyone can have seen."""
        if self.writes.sent_ms is not None:
            return self.writes.sent_ms
        is_stalled = self.stalled_until_ms > self.world.clock.now_ms
        return self._stalled_ms if is_stalled else super().now_ms()

    def stall(self, duration_ms: int, noticed_ms: int) -> None:
        self._stalled_ms = self.now_ms()
        super().stall(duration_ms, noticed_ms)

    def take_contacts(self, now_ms: int) -> Contacts:
        """Return whom it has heard of, for the one that continues its life."""
        contacts, self.contacts = self.contacts, Contacts(self.state.timing)
        contacts.restarted(self.now_ms(), now_ms)
        return contacts

    def shake(self) -> None:
        """Tell the rules that the shard is about to move."""
        jobs = self.member.fleet.jobs_of(self.claim.shard)
        self.world.safety.shaken(self, self.world.clock.now_ms + TAKEOVER_MS, jobs)

    def die(self) -> None:
        """End with its process."""
        self.is_dead = True
        self.end()

    def halt(self) -> None:
        """Answer nothing more, at once, and end all streams."""
        if self.is_halted:
            return
        if not self.is_ended:
            self.shake()
        self.is_halted = True
        self.listeners.end()
        for stream in list(self._streams.values()):
            self._write(stream)
        self.end()

    # --- what it does while it may not ---

    def receive(self, stream: Stream, message: bytes | Hangup, sent_ms: int) -> None:
        if not self.is_halted and not stream.server_done:
            super().receive(stream, message, sent_ms)

    def _submit(self, input: inputs.Input) -> None:
        if not self.is_halted:
            super()._submit(input)

    def _take_turn(self) -> None:
        if self.is_halted or self.is_dead:
            return
        if self.is_ended and not self.writes.is_refused:
            # It does not know that yet: etcd has to refuse what it decides.
            if not self.writes.try_in_vain(self._foresee(self._arrived(), super().now_ms())):
                self._turn = None
                self._schedule(PULSE_MS)
            return
        super()._take_turn()

    def show(self, turn: Steps) -> None:
        if self.is_halted or not self.owns():
            return  # those who wait learn that the coordinator has ended
        self.member.fleet.shown(self, "what a turn has decided")
        super().show(turn)

    def _write(self, stream: Stream) -> None:
        if self.is_dead or stream.outbox is None or stream.server_done:
            return
        if self.stalled_until_ms <= self.world.clock.now_ms and not self.owns():
            stream.is_writing = False
            if stream.outbox.end is None:
                stream.outbox.finish(ended_status())
            self._finish(stream, stream.outbox)
            return
        super()._write(stream)

    def _send(self, stream: Stream, message: bytes) -> None:
        self.member.fleet.shown(self, "a message to an agent")
        super()._send(stream, message)
