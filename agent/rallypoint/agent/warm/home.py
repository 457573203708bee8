"""Where standbys live: the helper that they are children of, and what became of each.

The sweep of a round ends everything below the helper of that round, so standbys have another one.
A start that uses standbys exchanges the two: the round runs below the helper that has them, and the
other one, below which nothing is left, gets the next ones.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rallypoint.agent.helper.events import (
    ORPHANS,
    Blocked,
    Clean,
    Exited,
    HelperLost,
    HostEvent,
    Spawned,
    SpawnFailed,
    Swept,
)
from rallypoint.agent.helper.host import WorkerHost, WorkerHostError
from rallypoint.agent.warm.standby import Standby
from rallypoint.base.log import get_logger

log = get_logger()


Exchange = Callable[[WorkerHost], WorkerHost | None]
"""Makes a helper the round's, and returns the one that was; None: that one is lost, and must be
replaced first."""


class Home:
    """The helper of the standbys of one node, and those that have not ended."""

    def __init__(
        self, launch: Callable[[], WorkerHost], on_ended: Callable[[Standby], None]
    ) -> None:
        """Begin without a helper.

        Args:
            launch: starts one.
            on_ended: learns that a standby has ended.
        """
        self.host: WorkerHost | None = None
        """None: not started yet, or lost."""
        self._launch = launch
        self._on_ended = on_ended
        self._lost: set[WorkerHost] = set()
        """Helpers that have died, until their orphans are gone."""
        self._standbys: dict[int, Standby] = {}
        """All that have not ended, by id."""

    def open(self) -> WorkerHost:
        """Return the helper; start one if there is none.

        Raises:
            OSError, WorkerHostError: it cannot be started.
        """
        return self.host or self._take(self._launch())

    def _take(self, host: WorkerHost) -> WorkerHost:
        self.host = host
        host.attach(partial(self._on_event, host))
        return host

    def exchange(self, exchange: Exchange) -> bool:
        """Give the helper to the round that starts, and take the one that it had.

        Returns:
            False: the round keeps its own.
        """
        other = None if self.host is None else exchange(self.host)
        if other is None:
            return False
        self._take(other)
        return True

    def add(self, standby: Standby) -> None:
        """Take a standby whose process the helper was asked for."""
        self._standbys[standby.id] = standby

    def release(self, standby: Standby) -> None:
        """Give up a standby that is a worker now: its next events are those of a worker."""
        standby.close()
        self._standbys.pop(standby.id, None)

    def end(self, standby: Standby) -> None:
        """End a standby, whatever it does."""
        standby.close()
        host = standby.host
        if standby.exited is None and host is not None and standby.id in self._standbys:
            with suppress(WorkerHostError):  # the helper has died, and its children with it
                host.signal(signal.SIGKILL, (standby.id,))

    def takes(self, event: HostEvent) -> bool:
        """Return whether an event is about a standby that has not become a worker; note it."""
        match event:
            case Spawned(worker_id=standby_id, pid=pid) if standby_id in self._standbys:
                self._standbys[standby_id].pid = pid
                self._standbys[standby_id].is_known.set()
            case SpawnFailed(worker_id=standby_id, message=text) if standby_id in self._standbys:
                self._standbys.pop(standby_id).failure = text
            case Exited(worker_id=standby_id) if standby_id in self._standbys:
                standby = self._standbys.pop(standby_id)
                standby.exited = event
                self._on_ended(standby)
            case _:
                return False
        return True

    def _on_event(self, host: WorkerHost, event: HostEvent) -> None:
        if self.takes(event):
            return
        match event:
            case HelperLost(pid=pid):
                log.warning("standby_helper_lost", pid=pid, then="only standbys are lost")
                self._lost.add(host)
                self.host = None
            case Clean(token=token) if token == ORPHANS:
                self._lost.discard(host)
            case Blocked(pids=pids):
                log.warning("standbys_survived", pids=pids, why="they do not die of SIGKILL")
            case Swept(pids=pids):
                log.warning("leftovers_killed", pids=pids, why="their agent is dead")
            case _:
                pass

    async def close(self) -> None:
        """End all standbys, and the helper."""
        for standby in self._standbys.values():
            standby.close()
        hosts = [*self._lost] if self.host is None else [*self._lost, self.host]
        await asyncio.gather(*(host.close() for host in hosts))
