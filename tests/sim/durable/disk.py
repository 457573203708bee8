"""The journal of a durable coordinator, and what goes wrong where it is written.

It holds the bytes of the real codec, one entry for each batch, and outlives the coordinator's
process. Like every store, it takes a batch whole or not at all: what a crash has left half-way is
dropped when the journal is opened again.

Everything here is drawn from a separate generator, so the other choices of a seed stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.journal.codec.batches import Batch, decode_batch, encode_batch
from sim.seeds.faults import DiskFault

if TYPE_CHECKING:
    from sim.world.node import Host
    from sim.world.server import Server
    from sim.world.world import World

DURABLE_PERCENT = 50
"""Of the seeds."""
IDENTITY = f"{0xD:032x}"
SECRET = bytes(range(32))
SLOW_MS = (5, 60, 400, 6_000)
"""How long an append may take, at most."""
JUMP_PERCENT = 25
"""Of the starts."""
JUMPS_MS = (7_000, 61_000, 3_600_000)
CUT_OFF_MS = (3_000, 9_000, 40_000)
"""How long nothing passes after a partition was open; the last is longer than any fence."""
DOWN_MS_MAX = 4_000
"""How long a coordinator is away."""
LOST = frozenset({DiskFault.CRASH_BEFORE, DiskFault.CRASH_HALFWAY, DiskFault.FAIL})
"""After these nothing of the batch is there."""
CRASHES = frozenset({*LOST, DiskFault.CRASH_AFTER, DiskFault.CRASH_COMPACTING})


class Disk:
    """The journal, and the fault that its next write meets."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = Random(f"{world.seed} disk")
        is_durable = self.rng.random() * 100 < DURABLE_PERCENT
        wanted = world.options.durable
        self.is_durable = is_durable if wanted < 0 else wanted > 0
        if world.options.owners:
            self.is_durable = False  # their journals are in etcd
        self.batches: list[bytes] = []
        """Whole ones, oldest first."""
        self.torn = b""
        """The beginning of a batch that a crash has cut off."""
        self.armed: DiskFault | None = None
        """What the next write meets."""
        if self.is_durable and world.options.disk:
            self._schedule()

    def _schedule(self) -> None:
        delay_ms = int(self.rng.expovariate(1 / self.world.options.disk_every_ms)) + 1
        self.world.clock.after(delay_ms, self._arm)

    def _arm(self) -> None:
        if not self.world.is_calm:
            self.armed = self.rng.choice(self.world.options.disk)
            self._schedule()

    def calm(self) -> None:
        """Let every write succeed from now on."""
        self.armed = None

    # --- the store ---

    def load(self) -> list[Batch]:
        """Return what was written, oldest first; drop what is torn."""
        self.torn = b""
        return [decode_batch(batch) for batch in self.batches]

    def append(self, records: Sequence[JournalRecord], now_ms: int, unix_ms: int) -> None:
        """Write a batch."""
        self.torn = b""
        self.world.coverage.wrote(records)
        self.batches.append(encode_batch(records, now_ms, unix_ms))

    def tear(self, records: Sequence[JournalRecord], now_ms: int, unix_ms: int) -> None:
        """Write the beginning of a batch."""
        whole = encode_batch(records, now_ms, unix_ms)
        self.torn = whole[: self.rng.randrange(len(whole))]

    def compact(self, records: Sequence[JournalRecord], now_ms: int, unix_ms: int) -> None:
        """Replace everything by one batch."""
        self.world.coverage.wrote(records)
        self.batches = [encode_batch(records, now_ms, unix_ms)]
        self.torn = b""

    # --- faults ---

    @property
    def loses(self) -> bool:
        """Whether the next write is lost."""
        return self.armed in LOST

    def take(self, *, is_loss: bool = False) -> DiskFault | None:
        """Return the fault that a write meets, which is over with it; some wait for a loss."""
        if self.armed is DiskFault.SLOW_LOSS and not is_loss:
            return None
        fault, self.armed = self.armed, None
        if fault is not None:
            self.world.note("disk", fault.value)
            self.world.coverage.counts["disk", fault.value] += 1
        return fault

    def slow_ms(self) -> int:
        """Return how long an append takes that is slow; it ends with the faults."""
        left_ms = max(1, self.world.faults.until_ms - self.world.clock.now_ms)
        return min(self.rng.randint(1, self.rng.choice(SLOW_MS)), left_ms)

    def draw_jump_ms(self) -> int:
        """Return how far ahead the clock of the host is where a coordinator starts again."""
        return self.rng.choice(JUMPS_MS) if self.rng.random() * 100 < JUMP_PERCENT else 0

    def let_through(self, slow_ms: int, lost: Set[SessionId]) -> None:
        """Let some hosts behind a partition through while an append takes its time.

        What the turn has decided about a node is not known yet, and the node says something: each
        node that the turn has removed, and some others.
        """
        clock = self.world.clock
        for host in self.world.hosts:
            is_lost = host.agent is not None and host.agent.session in lost
            if host.unreachable_until_ms > clock.now_ms and (is_lost or self.happens()):
                self.world.disturb_host(host)
                self.world.network.release(host)
                clock.after(slow_ms, partial(self._cut_off, host, self.rng.choice(CUT_OFF_MS)))

    def _cut_off(self, host: Host, for_ms: int) -> None:
        if not self.world.is_calm:
            self.world.disturb_host(host)
            self.world.partition(host, for_ms)

    def happens(self) -> bool:
        """Return one of two possibilities."""
        return self.rng.random() < 0.5

    def crash(self, server: Server) -> None:
        """End the process of a coordinator that writes; another one starts after a while."""
        down_ms = self.rng.randint(1, DOWN_MS_MAX)
        self.world.shake(server, down_ms)
        self.world.stop_coordinator(resets=True)
        self.world.clock.after(down_ms, self.world.chaos.begin_again)

    def begin_again_later(self) -> None:
        """Start another process after a while: one has ended before it served anyone."""
        down_ms = self.rng.randint(1, DOWN_MS_MAX)
        self.world.clock.after(down_ms, self.world.chaos.begin_again)
