"""One channel to the coordinator, shared by a store and its clones, or by all that torch makes.

C++ may hold a store when Python does not any more, and can call only what Python still has. So
every store lives until it is closed, or until the process ends.
"""

from __future__ import annotations

import atexit
import os
import random
import threading
import time
from collections.abc import Collection

from rallypoint.client.errors import ClientClosed, RallypointError
from rallypoint.client.shared import borrow, give_back
from rallypoint.client.sync import Client
from rallypoint.client.values import Scope
from rallypoint.v1.job_pb2 import JOB_VIEW_BASIC

OUTAGE_S = 300.0
"""How long a call without a timeout waits for a coordinator."""
LAST_CALL_S_MIN = 1.0
"""A call that begins just before the deadline of its operation may take so long."""
PAUSE_S_MIN = 0.005
PAUSE_S_MAX = 1.0
"""Bounds of the pauses between two attempts: random below a bound that doubles from the first to
the second. The first is about the time of a call."""


class Connection:
    """A client, and who uses it. Threads may share it."""

    def __init__(
        self,
        coordinator: str,
        job_id: str,
        token: str,
        epoch: int,
        scope: Scope,
        *,
        is_shared: bool = False,
    ) -> None:
        """Connect at the first call.

        Args:
            coordinator: its host:port, or those of several with commas in between.
            job_id: the job.
            token: of a worker, or of the order of a round.
            epoch: of the coordinator that formed the round; 0: not known.
            scope: what the keys belong to.
            is_shared: use the channel of all in this process that share one, such as
                `rallypoint.worker`. Then `close` does not end calls that are under way.
        """
        self.coordinator = coordinator
        self.job_id = job_id
        self.token = token
        self.epoch = epoch
        self.scope = scope
        self._borrowed = borrow(coordinator, token, epoch) if is_shared else None
        self._client = (
            Client(coordinator, token=token, epoch=epoch, limit_s=OUTAGE_S)
            if self._borrowed is None
            else self._borrowed.client
        )
        self._world_size = 0
        self._pid = os.getpid()
        self._closed = threading.Event()

    @property
    def client(self) -> Client:
        """The client.

        Raises:
            ClientClosed: when it was closed, or this process was forked from the one that made it.
        """
        if self._pid != os.getpid():
            raise ClientClosed(
                "this process was forked from the one that made the store; "
                "start it by spawn, and make a store in it"
            )
        if self._closed.is_set():
            raise ClientClosed("the client was closed")
        return self._client

    @property
    def is_closed(self) -> bool:
        """Whether its last store was closed."""
        return self._closed.is_set()

    @property
    def world_size(self) -> int:
        """Ranks of the round, as the coordinator knows them; 0: there is no round now."""
        if not self._world_size:
            job = self.client.get_job(self.job_id, view=JOB_VIEW_BASIC).job
            self._world_size = job.round.header.world_size
        return self._world_size

    def has_lost_keys(self) -> bool:
        """Return whether the coordinator has started again since, without its memory."""
        now = self.client.get_coordinator().coordinator
        return 0 < self.epoch < now.epoch and not now.durable

    def find_nodes(self, ranks: Collection[int]) -> dict[int, str]:
        """Return the nodes of these ranks, as far as the coordinator shows them."""
        if not ranks:
            return {}
        members = self.client.get_job(self.job_id).job.round.members
        found: dict[int, str] = {}
        for member in members:
            first, count = member.assignment.first_rank, member.assignment.local_world_size
            found |= {rank: member.node_name for rank in ranks if first <= rank < first + count}
        return found

    def pause(self, pause_s: float) -> None:
        """Wait before another attempt.

        Raises:
            ClientClosed: meanwhile.
        """
        if self._closed.wait(pause_s):
            raise ClientClosed("the client was closed")

    def close(self) -> None:
        """End all calls."""
        with _lock:
            if self._closed.is_set():
                return
            self._closed.set()
        if self._borrowed is None:
            self._client.close()
        else:
            give_back(self._borrowed)


_lock = threading.Lock()
_users: dict[Connection, set[object]] = {}
"""The open stores of each connection."""


def enter(connection: Connection, store: object) -> None:
    """Keep a store, and its connection, until it leaves."""
    with _lock:
        _users.setdefault(connection, set()).add(store)


def leave(connection: Connection, store: object) -> None:
    """Let a store go; the last one closes the connection."""
    with _lock:
        stores = _users.get(connection, set())
        stores.discard(store)
        is_last = connection in _users and not stores
        if is_last:
            del _users[connection]
    if is_last:
        connection.close()


def leave_all(connection: Connection) -> None:
    """Let all stores of a connection go, and close it."""
    with _lock:
        _users.pop(connection, None)
    connection.close()


def _close_all(pid: int) -> None:
    if pid == os.getpid():  # a child inherits the handlers of its parent
        for connection in tuple(_users):
            connection.close()


atexit.register(_close_all, os.getpid())


class KeyContended(RallypointError):
    """Others have changed a key during every attempt, until the deadline."""

    status = "ABORTED"


class Deadline:
    """When a wait ends."""

    def __init__(self, limit_s: float) -> None:
        """Begin now."""
        self.limit_s = limit_s
        self._ends_s = time.monotonic() + limit_s

    def left_s(self) -> float:
        """Return the time that is left; 0: none."""
        return max(0.0, self._ends_s - time.monotonic())


class Tries:
    """The attempts of one operation: one deadline, and a random pause before each but the first."""

    def __init__(self, connection: Connection, deadline: Deadline) -> None:
        """Begin before the first attempt."""
        self._connection = connection
        self._deadline = deadline
        self._pauses = 0

    @property
    def limit_s(self) -> float:
        """How long the next call may take."""
        return max(LAST_CALL_S_MIN, self._deadline.left_s())

    def pause(self) -> bool:
        """Wait before another attempt; return whether there is time for one.

        Raises:
            ClientClosed: meanwhile.
        """
        bound_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** min(self._pauses, 16))
        pause_s = random.uniform(0.0, bound_s)
        if pause_s >= self._deadline.left_s():
            return False
        self._pauses += 1
        self._connection.pause(pause_s)
        return True

    def pause_for(self, name: str) -> None:
        """Wait before another attempt to change a key that others have changed.

        Raises:
            KeyContended: there is no time for one.
            ClientClosed: meanwhile.
        """
        if not self.pause():
            raise KeyContended(
                f"others changed the key {name!r} during every attempt "
                f"for {self._deadline.limit_s:g} s"
            )
