"""One relay's stream: a task reads it and another writes it, for all its agents.

Each agent is served as on a separate stream, with the same checks and limits. What is wrong with
one agent ends that agent's stream alone. When the relay's stream ends, its agents are not lost:
they come back through another relay, or directly, and have their leases for that.

The writer sends in one message what the outboxes hold meanwhile, so a round that concerns all
agents of a relay is one message. A relay that does not read costs no more than its outboxes: a
write that takes longer than the shortest lease ends the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from rallypoint.base.log import get_logger, new_incident
from rallypoint.server.coordinator import CoordinatorEnded
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.rpc.convert.bounds import check
from rallypoint.server.rpc.convert.checks import InvalidMessage
from rallypoint.server.rpc.errors import ended_status, internal_status, limit_status, lost_status
from rallypoint.server.rpc.guards import limits
from rallypoint.server.rpc.guards.access.gate import CURRENT
from rallypoint.server.rpc.guards.access.refusals import AccessRefused
from rallypoint.server.rpc.guards.peers import RETRY_S, LimitExceeded, Peers, host_of
from rallypoint.server.rpc.relays.access import hold, let_in
from rallypoint.server.rpc.relays.batches import ENTRIES_MAX, Batches
from rallypoint.server.rpc.relays.seats import Place, Seat, Seats
from rallypoint.server.rpc.sessions.connections import FAREWELL_S_MAX, Ended, note_ends
from rallypoint.server.rpc.status import abort_with, invalid_status, silent_status
from rallypoint.server.rpc.views.node import show_session
from rallypoint.v1 import agent_service_pb2 as agent_pb2

log = get_logger()

LOOK_S = 1.0
"""Pause between two looks whether the relay is heard: it says something at least as often."""
SILENT_LOOKS = 3
"""Looks in a row without a word after which a relay counts as gone. That is sooner than the
shortest usual lease, so its agents, whose leases begin again then, notice it in time themselves."""
WRITE_S_MAX = 10.0
"""Longest write to a relay without agents."""

_EOF: object = grpc.aio.EOF
Context = grpc.aio.ServicerContext[Any, Any]
Find = Callable[[agent_pb2.SessionRequest], "Place | Status"]
"""Returns who serves an agent with this Hello, or the status to end its stream with."""


async def carry(context: Context, peers: Peers, find: Find) -> None:
    """Serve the stream of a relay until it ends.

    Args:
        context: of the call.
        peers: what each host uses.
        find: chooses who serves an agent.

    Raises:
        LimitExceeded: when the host of the relay has too many streams.
    """
    with peers.stream(host_of(context.peer()), time.monotonic()):
        end = await Carrying(context, peers, find).run()
    if end is not None:
        await abort_with(context, end)


class Carrying:
    """One relay's stream."""

    def __init__(self, context: Context, peers: Peers, find: Find) -> None:
        """Begin without agents; see `carry`."""
        self._context = context
        self._peers = peers
        self._find = find
        self._entry = CURRENT.get()
        self._seats = Seats()
        self._end: Status | None = None
        """Set when the stream has to end."""
        self._failure: Exception | None = None
        """Set when it cannot be read any more."""
        self._has_ended = False
        """The relay has ended its side."""
        self._answers = 0
        """Signs of life to answer."""
        self._is_heard = True
        """Since the last look."""
        self._silent = 0
        """Looks in a row without a word."""
        self._limit_s = WRITE_S_MAX

    async def run(self) -> Status | None:
        """Serve until the stream ends; return the status to end it with, if any."""
        end = await self._begin()
        if end is not None:
            return end
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read_all())
                await self._write_all()
                reader.cancel()
            if self._failure is not None:
                raise self._failure
            return self._end
        finally:
            self._looking.cancel()
            log.info("relay_disconnected", agents=len(self._seats))
            await note_ends(self._seats.remove_all())

    async def _begin(self) -> Status | None:
        """Read the first message."""
        try:
            async with asyncio.timeout(limits.HELLO_S_MAX):
                first = await self._context.read()
        except TimeoutError:
            return silent_status(f"no first message arrived within {limits.HELLO_S_MAX:g} s")
        if first is _EOF:
            return silent_status("the stream ended without a message")
        if not first.protocol_version or first.entries:
            return invalid_status("protocol_version", "the first message has it, and nothing else")
        if self._entry is not None:
            self._entry.note_joined()
        log.info("relay_connected")
        self._answers = 1
        self._seats.wake.set()
        return None

    # --- Reading ----------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        """Read until the stream ends; leave an exception to the writer, as `AgentService` does."""
        try:
            await self._read()
        except Exception as error:  # noqa: BLE001  # `run` raises it
            self._failure = error
        self._has_ended = True
        self._seats.wake.set()

    async def _read(self) -> None:
        try:
            while (request := await self._context.read()) is not _EOF:
                self._is_heard = True
                check(request)
                if not request.entries:
                    self._answers += 1
                    self._seats.wake.set()
                for entry in request.entries:
                    await self._take(entry)
        except InvalidMessage as invalid:
            log.warning("message_rejected", path=invalid.path, problem=invalid.problem)
            self._end = invalid_status(invalid.path, invalid.problem)
        except grpc.aio.UsageError:
            pass  # the stream is gone

    async def _take(self, entry: agent_pb2.RelayedRequest) -> None:
        number = entry.stream
        if entry.HasField("opening"):
            if not self._seats.is_new(number):
                raise InvalidMessage("entries.stream", "must be higher than those before")
            await self._open(number, entry.opening)
            return
        seat = self._seats.find(number)
        if seat is None or seat.closes_s is not None:
            return
        if entry.HasField("message"):
            await self._receive(seat, entry.message)
        elif entry.HasField("closing"):
            await self._close(seat, still_reads=entry.closing.still_reads)

    async def _open(self, number: int, opening: agent_pb2.RelayedOpening) -> None:
        """Admit an agent, or end its stream."""
        held = ExitStack()
        try:
            # What it binds to the log is of this agent alone.
            seat = copy_context().run(self._admit, number, opening, held)
        except LimitExceeded as exceeded:
            seat = limit_status(exceeded)
        except AccessRefused as refused:
            seat = refused.status
        except DecodeError:
            seat = invalid_status("message", "cannot be decoded")
        except Exception as error:  # noqa: BLE001  # it ends this agent's stream, not those of the others
            seat = _internal(error)
        if isinstance(seat, Status):
            held.close()
            self._seats.ends.append((number, seat))
            self._seats.wake.set()
            return
        self._seats.add(seat)
        self._limit_s = min(self._limit_s, seat.place.connections.lease_s(seat.connection))
        try:
            await seat.place.connections.submit(seat.connection)
        except CoordinatorEnded:
            seat.connection.outbox.finish(ended_status())

    def _admit(
        self, number: int, opening: agent_pb2.RelayedOpening, held: ExitStack
    ) -> Seat | Status:
        """Return the seat of an agent, or the status to end its stream with.

        Raises:
            AccessRefused: when it may not take part in its job.
            LimitExceeded: when it is too much for its host, or for the relay.
            DecodeError: when its Hello is no message.
        """
        if len(self._seats) >= limits.STREAMS_PER_RELAY_MAX:
            most = limits.STREAMS_PER_RELAY_MAX
            raise LimitExceeded(Limit.STREAMS_PER_RELAY, most, RETRY_S)
        first = agent_pb2.SessionRequest.FromString(opening.hello)
        opening.ClearField("hello")
        entry, peer = None, self._context.peer()
        if self._entry is not None:
            entry = let_in(self._entry, self._context, opening, first.hello.job_id)
            peer = opening.peer or peer
        found = self._find(first)
        if isinstance(found, Status):
            return found
        stream = held.enter_context(self._peers.stream(host_of(peer), time.monotonic()))
        opened = found.connections.open(first, stream, lambda: self._seats.flag(number))
        if isinstance(opened, Status):
            return opened
        seat = Seat(number, found, opened, held, entry)
        if entry is not None:
            entry.note_joined()
            outbox = opened.outbox
            held.callback(
                hold(entry, self._context, opening, lambda refused: outbox.finish(refused.status))
            )
        return seat

    async def _receive(self, seat: Seat, encoded: bytes) -> None:
        """Pass on a message of an agent; one that is no good ends its stream."""
        outbox = seat.connection.outbox
        try:
            envelope = agent_pb2.SessionRequest.FromString(encoded)
            await seat.place.connections.take(seat.connection, envelope)
        except InvalidMessage as invalid:
            session_id = show_session(outbox.session)
            path, problem = invalid.path, invalid.problem
            log.warning("message_rejected", path=path, problem=problem, session_id=session_id)
            outbox.finish(invalid_status(path, problem))
        except DecodeError:
            outbox.finish(invalid_status("message", "cannot be decoded"))
        except CoordinatorEnded:
            outbox.finish(ended_status())
        except Exception as error:  # noqa: BLE001  # it ends this agent's stream, not those of the others
            outbox.finish(_internal(error))

    async def _close(self, seat: Seat, *, still_reads: bool) -> None:
        if still_reads and seat.connection.is_leaving:
            seat.closes_s = time.monotonic() + FAREWELL_S_MAX
            return
        if still_reads:
            self._seats.ends.append((seat.number, None))
            self._seats.wake.set()
        ended = self._seats.remove(seat)
        if ended is not None:
            await note_ends([ended])

    # --- Writing ----------------------------------------------------------------------------------

    async def _write_all(self) -> None:
        """Send what the outboxes hold until the stream ends."""
        seats = self._seats
        try:
            while self._end is None and not self._has_ended:
                await seats.wake.wait()
                seats.wake.clear()
                while (seats.has_due or self._answers) and self._end is None:
                    await self._write_due()
        except TimeoutError:
            log.warning("write_timed_out", agents=len(seats))
            self._end = lost_status()

    async def _write_due(self) -> None:
        """Send one batch, and the answers to heartbeats that need an explanation."""
        batches, asking, ended = Batches(), list[Seat](), list[Ended]()
        ends, self._seats.ends = self._seats.ends, []
        for number, status in ends:
            batches.end(number, status)
        for seat in self._seats.take_due(ENTRIES_MAX // 4):  # a seat has up to four messages
            one = self._collect(seat, batches, asking)
            ended += [] if one is None else [one]
        if self._answers:
            self._answers = 0
            batches.sign_of_life()
        await self._send(batches)
        await note_ends(ended)
        if asking:
            await self._send(await self._explain(asking))

    def _collect(self, seat: Seat, batches: Batches, asking: list[Seat]) -> Ended | None:
        """Take what there is for an agent; return what the core has to learn if its stream ends."""
        connection, place = seat.connection, seat.place
        outbox, envelopes = connection.outbox, place.connections.envelopes
        if not place.is_sure():
            outbox.finish(ended_status())
        if place.distances is None:
            messages = envelopes.take(outbox)
        else:
            with place.distances.used():
                messages = envelopes.take(outbox)
        for message in messages:
            batches.message(seat.number, message)
        has_left = outbox.has_left and outbox.end is None
        if has_left:
            batches.message(seat.number, envelopes.acknowledge(outbox))
        if has_left or outbox.end is not None or outbox.ended:
            batches.end(seat.number, outbox.end)
            return self._seats.remove(seat)
        if outbox.is_open and outbox.heartbeat > outbox.answered:
            if outbox.runs_workers:
                batches.message(seat.number, envelopes.answer(outbox, None))
            else:
                asking.append(seat)
        return None

    async def _explain(self, asking: list[Seat]) -> Batches:
        """Return answers to heartbeats that say what the jobs wait for."""
        batches = Batches()
        places = {id(seat.place.connections): seat.place.connections for seat in asking}
        for connections in places.values():
            seats = [seat for seat in asking if seat.place.connections is connections]
            envelopes = connections.envelopes
            try:
                waits = await connections.coordinator.read(
                    lambda state, now_ms, envelopes=envelopes, seats=seats: [  # type: ignore[misc]
                        envelopes.explain(seat.connection.outbox.session, now_ms) for seat in seats
                    ]
                )
            except CoordinatorEnded:
                continue  # it ends their streams
            for seat, waiting in zip(seats, waits, strict=True):
                outbox = seat.connection.outbox
                if outbox.end is None and self._seats.find(seat.number) is seat:
                    batches.message(seat.number, envelopes.answer(outbox, waiting))
        return batches

    async def _send(self, batches: Batches) -> None:
        for batch in batches.made:
            async with asyncio.timeout(self._limit_s):
                await self._context.write(batch)

    # --- Silence ----------------------------------------------------------------------------------

    def _look(self) -> None:
        """End the stream of a relay that stands still, and those of agents that have left.

        A coordinator that stood still itself looks once, and then hears what has arrived.
        """
        self._silent = 0 if self._is_heard else self._silent + 1
        self._is_heard = False
        for seat in self._seats.overdue(time.monotonic()):
            seat.connection.outbox.ended = True
            self._seats.note_due(seat.number)
        if self._silent >= SILENT_LOOKS:
            log.warning("relay_timed_out", agents=len(self._seats), why="it says nothing")
            self._end = silent_status(f"nothing arrived for {SILENT_LOOKS * LOOK_S:g} s")
            self._seats.wake.set()
        else:
            self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)


def _internal(error: Exception) -> Status:
    """Log a bug; return the status that names its line in the log."""
    incident = new_incident()
    log.error("relayed_agent_failed", incident=incident, exc_info=error)
    return internal_status(incident)
