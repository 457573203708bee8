"""Writes one relay's stream: one message has what the outboxes of all its agents hold.

So a round that concerns all agents of a relay is one message. A relay that does not read costs no
more than its outboxes: a write that takes longer than 5 s ends the stream.

A coordinator explains in a turn what a job waits for. The writer does not wait for that turn: while
a journal stands still, the other agents of the relay get what there is for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from google.rpc.status_pb2 import Status

from rallypoint.base.log import get_logger
from rallypoint.server.access.usage.lines import may_log
from rallypoint.server.agents.connections import Connections, Ended
from rallypoint.server.agents.relays.room import LateEnds
from rallypoint.server.agents.relays.seats import Explanation, Seat, Seats, note_bug
from rallypoint.server.contract.calls import Context
from rallypoint.server.contract.errors import ended_status, lost_status
from rallypoint.server.contract.pages import Room
from rallypoint.server.shell.coordinator import CoordinatorEnded
from rallypoint.v1 import agent_service_pb2 as agent_pb2

log = get_logger()

WRITE_S_MAX = 5.0
"""Longest write: the relay does not read. Leases do not count: one job would decide for all."""
ENTRIES_MAX = 1_024
"""Entries of one message, as the contract says."""
SEATS_MAX = ENTRIES_MAX // 4
"""Agents whose messages are collected at once: each has up to four."""


class Batches:
    """Messages to a relay that are being put together, each of bounded size."""

    def __init__(self) -> None:
        """Begin without any."""
        self.made: list[agent_pb2.RelayResponse] = []
        """In order."""
        self._room = Room(size=ENTRIES_MAX)

    def message(self, stream: int, message: agent_pb2.SessionResponse) -> None:
        """Add a message to an agent."""
        encoded = message.SerializeToString()
        self._find_room(len(encoded)).entries.add(stream=stream, message=encoded)

    def end(self, stream: int, status: Status | None) -> None:
        """Add the end of an agent's stream; None: OK."""
        end = agent_pb2.RelayedEnd()
        if status is not None:
            end.code, end.text = status.code, status.message
            end.details = status.SerializeToString() if status.details else b""
        self._find_room(end.ByteSize()).entries.add(stream=stream, end=end)

    def sign_of_life(self) -> None:
        """Let there be a message, if only one without entries."""
        if not self.made:
            self.made.append(agent_pb2.RelayResponse())

    def _find_room(self, size: int) -> agent_pb2.RelayResponse:
        """Return a message with room for an entry of this size."""
        if not self.made or not self._room.take(size):
            self.made.append(agent_pb2.RelayResponse())
            self._room = Room(size=ENTRIES_MAX)
            self._room.take(size)
        return self.made[-1]


class Writer:
    """Writes the stream of one relay."""

    def __init__(self, context: Context, seats: Seats, ends: LateEnds) -> None:
        """Begin without anything to send.

        Args:
            context: of the relay's call.
            seats: the agents.
            ends: informs the core of those whose streams end.
        """
        self.end: Status | None = None
        """Set when the stream has to end."""
        self._context = context
        self._seats = seats
        self._ends = ends
        self._is_stopped = False
        self._owes_sign_of_life = False
        self._asking: dict[Connections, dict[int, Seat]] = {}
        """Agents that wait for an explanation, by who gives it, and by their numbers."""
        self._explaining: dict[Connections, asyncio.Task[None]] = {}

    def answer_sign_of_life(self) -> None:
        """Send something, if only a message without entries."""
        self._owes_sign_of_life = True
        self._seats.wake.set()

    def stop(self, end: Status | None) -> None:
        """End the stream; the first status counts, None: the relay has ended its side."""
        if not self._is_stopped:
            self._is_stopped, self.end = True, end
        self._seats.wake.set()

    async def run(self) -> None:
        """Send what the outboxes hold until the stream ends."""
        seats = self._seats
        try:
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    while not self._is_stopped:
                        await seats.wake.wait()
                        seats.wake.clear()
                        while (seats.has_due or self._owes_sign_of_life) and not self._is_stopped:
                            await self._write_due()
                finally:
                    for task in self._explaining.values():
                        task.cancel()
        except* TimeoutError:
            if may_log():
                log.warning("write_timed_out", agents=len(seats))
            self.stop(lost_status())

    async def _write_due(self) -> None:
        """Send what there is now."""
        batches, ended = Batches(), list[Ended]()
        for number, status in self._seats.take_ends():
            batches.end(number, status)
        for seat in self._seats.take_due(SEATS_MAX):
            one = self._collect(seat, batches)
            ended += [] if one is None else [one]
        if self._owes_sign_of_life:
            self._owes_sign_of_life = False
            batches.sign_of_life()
        try:
            for batch in batches.made:
                async with asyncio.timeout(WRITE_S_MAX):
                    await self._context.write(batch)
        finally:  # their seats are gone: nothing else informs the core
            for one in ended:
                self._ends.note(one)

    def _collect(self, seat: Seat, batches: Batches) -> Ended | None:
        """Take what there is for an agent; return what the core has to learn if its stream ends."""
        outbox = seat.connection.outbox
        if not seat.place.is_sure():
            outbox.finish(ended_status())
        try:
            has_left = self._take(seat, batches)
        except Exception as error:  # noqa: BLE001  # it ends this agent's stream, not those of the others
            has_left = False
            outbox.finish(note_bug(error))
        if has_left or outbox.end is not None or outbox.ended:
            batches.end(seat.number, outbox.end)
            return self._seats.remove(seat)
        return None

    def _take(self, seat: Seat, batches: Batches) -> bool:
        """Empty the outbox of an agent; return whether it has left."""
        place, outbox = seat.place, seat.connection.outbox
        envelopes = place.connections.envelopes
        for message in envelopes.take(outbox):
            batches.message(seat.number, message)
        if outbox.has_left and outbox.end is None:
            batches.message(seat.number, envelopes.acknowledge(outbox))
            return True
        if outbox.is_open and outbox.heartbeat > outbox.answered and outbox.end is None:
            self._answer(seat, batches)
        return False

    def _answer(self, seat: Seat, batches: Batches) -> None:
        """Answer the latest heartbeat; ask first what the job waits for, unless it is known."""
        connections, outbox = seat.place.connections, seat.connection.outbox
        envelopes = connections.envelopes
        explanation, seat.explanation = seat.explanation, None
        answer = envelopes.answer_now(outbox, connections.coordinator.now_ms())
        if answer is None and explanation is not None:
            answer = envelopes.answer(outbox, explanation.waiting)
        if answer is not None:
            batches.message(seat.number, answer)
            return
        self._asking.setdefault(connections, {})[seat.number] = seat
        if connections not in self._explaining:
            task = self._tasks.create_task(self._explain(connections))
            self._explaining[connections] = task

    async def _explain(self, connections: Connections) -> None:
        """Ask what jobs wait for, until no agent asks for it any more."""
        try:
            while seats := tuple(self._asking.pop(connections, {}).values()):
                await self._explain_to(seats, connections)
        except CoordinatorEnded:
            pass  # it ends their streams
        finally:
            del self._explaining[connections]

    async def _explain_to(self, seats: Sequence[Seat], connections: Connections) -> None:
        """Ask what the jobs of agents wait for, for the answers to their latest heartbeats."""
        envelopes = connections.envelopes
        outboxes = [seat.connection.outbox for seat in seats]
        try:
            waits = await connections.coordinator.read(
                lambda state, now_ms: [envelopes.explain(one.session, now_ms) for one in outboxes]
            )
        except CoordinatorEnded:
            raise
        except Exception as error:  # noqa: BLE001  # it ends their streams, not those of the others
            end = note_bug(error)
            for outbox in outboxes:
                outbox.finish(end)
            return
        for seat, waiting in zip(seats, waits, strict=True):
            seat.explanation = Explanation(waiting)
            self._seats.note_due(seat.number)
