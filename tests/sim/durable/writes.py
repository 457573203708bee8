"""What a durable coordinator writes, by the rules of its shell: nothing is shown before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rallypoint.server.core.memory.replay import memory_of, snapshot
from rallypoint.server.shell.coordinator import LATE_MS
from sim.seeds.faults import DiskFault
from sim.world.turns import Steps

if TYPE_CHECKING:
    from sim.world.server import Server


class Writes:
    """What one process of the coordinator writes."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._disk = server.world.disk
        self.until_ms = 0
        """Until then the journal is being written: no turn is taken, and nothing is shown."""
        self.is_waiting = False
        """An append is slow."""
        self.slow_ms = 0
        """How long slow appends have taken."""

    @property
    def loses(self) -> bool:
        """Whether the next write is lost."""
        return self._disk.loses

    def hold_up(self, deliver: Callable[[], None]) -> bool:
        """Deliver something once the journal is written; return False if it is not being written.

        A coordinator that writes accepts calls, and looks at them in its next turn.
        """
        clock = self._server.world.clock
        if self.until_ms <= clock.now_ms and not self.is_waiting:
            return False
        clock.at(max(self.until_ms, self._server.stalled_until_ms), deliver)
        return True

    def lose(self, turn: Steps) -> None:
        """End where a turn would be written: nothing of it is there, and nothing was shown."""
        disk, world = self._disk, self._server.world
        if disk.take() is DiskFault.CRASH_HALFWAY:
            disk.tear(turn.records, turn.now_ms, self._server.unix_ms())
        if not disk.happens():
            disk.crash(self._server)
            return
        slow_ms = disk.slow_ms()
        world.shake(self._server, slow_ms)
        self.until_ms = world.clock.now_ms + slow_ms
        world.clock.at(self.until_ms, self._end)

    def _end(self) -> None:
        server = self._server
        if server.world.is_calm:  # faults have stopped: nothing was taken from the inbox yet
            server.look_soon()
        elif not server.is_dead:
            self._disk.crash(server)

    def write(self, turn: Steps) -> None:
        """Write what a turn has decided; then, and only then, show it."""
        disk, server = self._disk, self._server
        disk.append(turn.records, turn.now_ms, server.unix_ms())
        match disk.take(is_loss=bool(turn.lost)):
            case DiskFault.CRASH_AFTER:
                disk.crash(server)
            case DiskFault.CRASH_COMPACTING:
                if disk.happens():
                    self._compact(turn.now_ms)
                disk.crash(server)
            case DiskFault.SLOW | DiskFault.SLOW_LOSS:
                self._wait(turn, disk.slow_ms())
            case DiskFault.COMPACT:
                self._compact(turn.now_ms)
                server.show(turn)
            case _:
                server.show(turn)

    def _compact(self, now_ms: int) -> None:
        records = snapshot(memory_of(self._server.state))
        self._disk.compact(records, now_ms, self._server.unix_ms())

    def _wait(self, turn: Steps, slow_ms: int) -> None:
        """Wait for a slow append; what arrives meanwhile is for the next turn."""
        world = self._server.world
        world.shake(self._server, slow_ms)
        self._disk.let_through(slow_ms, turn.lost)
        self.until_ms = world.clock.now_ms + slow_ms
        self.is_waiting = True
        world.clock.at(self.until_ms, partial(self._written, turn, slow_ms))

    def _written(self, turn: Steps, slow_ms: int) -> None:
        server, clock = self._server, self._server.world.clock
        if server.is_dead:
            return
        if server.stalled_until_ms > clock.now_ms:
            clock.at(server.stalled_until_ms, partial(self._written, turn, slow_ms))
            return
        self.is_waiting = False
        self.slow_ms += slow_ms
        waited_ms = server.now_ms() - turn.now_ms
        if waited_ms > LATE_MS:
            server.hold_back(waited_ms)
        server.show(turn)
