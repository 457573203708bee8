"""The agents of one relay's stream, and which of them there is something to send to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

from google.rpc.status_pb2 import Status
from msgspec import Struct

from rallypoint.base.log import get_logger, new_incident
from rallypoint.server.access.gate import Entry
from rallypoint.server.agents.connections import Connection, Connections, Ended
from rallypoint.server.contract.errors import internal_status
from rallypoint.server.core.messages import inputs
from rallypoint.v1 import job_pb2

log = get_logger()

ENDS_MAX = 1_024
"""Ends of streams without a seat that wait to be sent: a relay may open many that are refused."""


class ServingShard(Struct, frozen=True):
    """The shard that serves a job."""

    connections: Connections
    is_sure: Callable[[], bool] = lambda: True
    """Whether no other coordinator can own the shard, at this moment."""


class Explanation(Struct, frozen=True):
    """What an agent's job waits for."""

    waiting: job_pb2.Waiting | None


class Seat(Struct, eq=False):
    """One agent."""

    number: int
    """Of its stream."""
    place: ServingShard
    connection: Connection
    held: ExitStack
    """What it is charged with, until it is gone."""
    entry: Entry | None = None
    """Its call; None: no one asks who calls."""
    closes_s: float | None = None
    """The agent sends nothing more, and gets the answer to its Goodbye until then."""
    explanation: Explanation | None = None
    """For the answer to its latest heartbeat, which is made when it is sent."""


class Seats:
    """The agents of one relay."""

    def __init__(self) -> None:
        """Begin without any."""
        self.wake = asyncio.Event()
        """Set when there is something to send, or to end."""
        self._ends: list[tuple[int, Status | None]] = []
        """Streams that have ended here, and how; None: OK."""
        self._seats: dict[int, Seat] = {}
        self._taken = asyncio.Event()
        """Set when the ends were taken."""
        self._due: dict[int, None] = {}
        """Those that there is something to send to, in the order in which it arose."""
        self._highest = 0

    def __len__(self) -> int:
        """Return the number of agents."""
        return len(self._seats)

    def is_new(self, number: int) -> bool:
        """Return whether a number was not used before; from now on it was."""
        is_new, self._highest = number > self._highest, max(self._highest, number)
        return is_new

    def flag(self, number: int) -> asyncio.Event:
        """Return an event that notes that there is something to send to an agent."""
        return _Flag(self, number)

    def note_due(self, number: int) -> None:
        """Note that there is something to send to an agent."""
        self._due[number] = None
        self.wake.set()

    def end(self, number: int, status: Status | None) -> None:
        """Note that the stream of an agent without a seat has ended; None: OK."""
        self._ends.append((number, status))
        self.wake.set()

    async def wait_for_room(self) -> None:
        """Wait while too many ends wait to be sent: the relay reads nothing."""
        while len(self._ends) >= ENDS_MAX:
            self._taken.clear()
            await self._taken.wait()

    def take_ends(self) -> list[tuple[int, Status | None]]:
        """Return the streams that have ended since the last call, and how."""
        ends, self._ends = self._ends, []
        self._taken.set()
        return ends

    def add(self, seat: Seat) -> None:
        """Add an agent."""
        self._seats[seat.number] = seat

    def find(self, number: int) -> Seat | None:
        """Return an agent; None when its stream has ended."""
        return self._seats.get(number)

    def take_due(self, most: int) -> list[Seat]:
        """Return agents that there is something to send to, at most so many."""
        numbers = list(self._due)[:most]
        for number in numbers:
            del self._due[number]
        return [seat for seat in map(self._seats.get, numbers) if seat is not None]

    @property
    def has_due(self) -> bool:
        """Return whether there is something to send."""
        return bool(self._due or self._ends)

    def overdue(self, now_s: float) -> list[Seat]:
        """Return the agents that have waited long enough for the answer to their Goodbye."""
        return [
            seat
            for seat in self._seats.values()
            if seat.closes_s is not None and seat.closes_s <= now_s
        ]

    def remove(self, seat: Seat, *, is_relay: bool = False) -> Ended | None:
        """Forget an agent; return what the core has to learn, if anything.

        Args:
            seat: of the agent.
            is_relay: its stream has ended because the relay's has.
        """
        if self._seats.pop(seat.number, None) is None:
            return None
        with seat.held:
            is_open = seat.place.connections.close(seat.connection)
        if not is_open or (seat.entry is not None and seat.entry.is_revoked):
            return None  # see `AgentService`
        broken = inputs.Broken(seat.connection.sender, is_relay)
        return Ended(seat.place.connections.coordinator, broken)

    def remove_all(self) -> list[Ended]:
        """Forget all agents: the relay's stream has ended. Return what the core has to learn."""
        ended = [self.remove(seat, is_relay=True) for seat in tuple(self._seats.values())]
        return [one for one in ended if one is not None]


def note_bug(error: Exception) -> Status:
    """Log a bug that ends the stream of one agent; return the status that names its line."""
    incident = new_incident()
    log.error("relayed_agent_failed", incident=incident, exc_info=error)
    return internal_status(incident)


class _Flag(asyncio.Event):
    """Stands for the event of an outbox: the task that waits serves all agents of the relay."""

    def __init__(self, seats: Seats, number: int) -> None:
        super().__init__()
        self._seats = seats
        self._number = number

    def set(self) -> None:
        self._seats.note_due(self._number)
