"""Injects faults into coordinators and etcd at random instants, until faults stop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rallypoint.server.shell.coordinator import LATE_MS
from sim.seeds.faults import Fault
from sim.shards.faults import OwnerFault
from sim.world.server import PULSE_MS

if TYPE_CHECKING:
    from sim.shards.fleet import Fleet
    from sim.shards.member import Member

FREEZE_MS = (300, 3_000, 9_000)
"""How long a process is suspended, at most; a lease takes 4 s."""
CUT_MS = (400, 3_000, 9_000)
DOWN_MS = (300, 2_500, 7_000)
STALE_MS_MAX = 8_000
LAG_MS_MAX = 6_000
AWAY_MS_MAX = 4_000
"""How long there is no process at an address."""
MEMBERS_MAX = 4


class OwnerChaos:
    """Injects faults."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.rng = fleet.rng
        self.world = fleet.world
        if fleet.rates.kinds:
            self._strike_later()
        if fleet.rates.appends:
            self._arm_later()

    def _strike_later(self) -> None:
        delay_ms = int(self.rng.expovariate(1 / self.fleet.rates.every_ms)) + 1
        self.world.clock.after(delay_ms, self._strike)

    def _arm_later(self) -> None:
        delay_ms = int(self.rng.expovariate(1 / self.fleet.rates.appends_every_ms)) + 1
        self.world.clock.after(delay_ms, self._arm)

    def _arm(self) -> None:
        if not self.world.is_calm:
            self.fleet.armed = self.rng.choice(self.fleet.rates.appends)
            self._arm_later()

    def _strike(self) -> None:
        if not self.world.is_calm:
            self.strike(self.rng.choice(self.fleet.rates.kinds))
            self._strike_later()

    def strike_as(self, fault: Fault) -> None:
        """Do to one of several coordinators what is done to a coordinator that is alone."""
        kinds = {
            Fault.CRASH: OwnerFault.KILL,
            Fault.BLACKOUT: OwnerFault.BLACKOUT,
            Fault.STALL: OwnerFault.FREEZE,
        }
        self.strike(kinds[fault])

    def strike(self, kind: OwnerFault) -> None:
        """Do it."""
        fleet, rng, now_ms = self.fleet, self.rng, self.world.clock.now_ms
        member = rng.choice(fleet.living() or [None])
        self.world.note("owner fault", kind.value, member and member.address)
        self.world.coverage.counts["owner fault", kind.value] += 1
        fleet.shake_all()
        match kind:
            case OwnerFault.DOWN:
                fleet.down_until_ms = now_ms + rng.randint(100, rng.choice(DOWN_MS))
                for one in fleet.living():
                    one.watch_stops()
            case OwnerFault.ELECT:
                fleet.etcd.elect(now_ms)
            case OwnerFault.STALE:
                fleet.etcd.elect(now_ms)
                until_ms = now_ms + rng.randint(100, STALE_MS_MAX)
                for one in fleet.living():
                    one.stale_until_ms = until_ms if rng.random() < 0.5 else 0
            case OwnerFault.COMPACT:
                fleet.etcd.compact()
            case OwnerFault.LAG:
                fleet.lag_until_ms = now_ms + rng.randint(100, LAG_MS_MAX)
            case OwnerFault.JOIN:
                self._join()
            case _ if member is not None:
                self._strike_one(kind, member)

    def _strike_one(self, kind: OwnerFault, member: Member) -> None:
        fleet, rng = self.fleet, self.rng
        match kind:
            case OwnerFault.KILL:
                fleet.kill(member, is_dark=False)
            case OwnerFault.BLACKOUT:
                self.world.disturb_all()
                fleet.kill(member, is_dark=True)
            case OwnerFault.FREEZE:
                self.freeze(member)
            case OwnerFault.TERMINATE:
                member.leave()
            case OwnerFault.CUT:
                member.cut(rng.randint(100, rng.choice(CUT_MS)))

    def _join(self) -> None:
        fleet = self.fleet
        if len(fleet.addresses) < MEMBERS_MAX:
            fleet.addresses += (f"c{len(fleet.addresses)}:50051",)
            fleet.join(fleet.addresses[-1])

    def freeze(self, member: Member) -> None:
        """Suspend a process. It ends with the faults, so that no agent gives up meanwhile."""
        if member.is_frozen or member.is_gone:
            return
        left_ms = max(1, self.world.faults.until_ms - self.world.clock.now_ms)
        duration_ms = min(self.rng.randint(100, self.rng.choice(FREEZE_MS)), left_ms)
        noticed_ms = max(0, duration_ms - self.rng.randint(0, PULSE_MS))
        member.freeze(duration_ms, noticed_ms if noticed_ms > LATE_MS else 0)

    def return_later(self, address: str) -> None:
        """Start another process where one has ended."""
        delay_ms = self.rng.randint(1, AWAY_MS_MAX)
        self.world.clock.after(delay_ms, partial(self.fleet.join, address))
