"""One relay's stream: a task reads it and another writes it, for all its agents.

Each agent is served as on a separate stream, with the same checks and limits. What is wrong with
one agent ends that agent's stream alone. When the relay's stream ends, its agents are not lost:
they come back through another relay, or directly, and have their leases for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from typing import Any

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.base.log import get_logger
from rallypoint.server.access.gate import CURRENT
from rallypoint.server.access.usage.lines import Kind, bind_caller, may_log
from rallypoint.server.access.usage.peers import (
    Peers,
    connected_host,
    host_of,
    is_peer,
    name_by,
)
from rallypoint.server.agents.connections import FAREWELL_S_MAX, note_ends
from rallypoint.server.agents.relays.access import hold, let_in
from rallypoint.server.agents.relays.room import LateEnds, WaitBudget
from rallypoint.server.agents.relays.seats import Seat, Seats, ServingShard, note_bug
from rallypoint.server.agents.relays.writing import ENTRIES_MAX, Writer
from rallypoint.server.contract import limits
from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import CallRefused, Context, InvalidMessage, LimitExceeded
from rallypoint.server.contract.errors import (
    ended_status,
    full_status,
    invalid_status,
    silent_status,
    to_status,
)
from rallypoint.server.contract.node import show_session
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.shell.coordinator import CoordinatorEnded
from rallypoint.server.shell.inbox import InboxFull
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.limits import NUMBER_MAX

log = get_logger()

LOOK_S = 1.0
"""Pause between two looks whether the relay is heard: it says something at least as often."""
SILENT_LOOKS = 3
"""Looks in a row without a word after which a relay counts as gone. That is sooner than the
shortest usual lease, so its agents, whose leases begin again then, notice it in time themselves."""
_EOF: object = grpc.aio.EOF
Find = Callable[[agent_pb2.SessionRequest], "ServingShard | Status"]
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
    with peers.stream(context.peer(), time.monotonic()):
        end = await Carrying(context, peers, find).run()
    if end is not None:
        raise CallRefused(end)


class Carrying:
    """One relay's stream."""

    def __init__(self, context: Context, peers: Peers, find: Find) -> None:
        """Begin without agents; see `carry`."""
        self._context = context
        self._peers = peers
        self._find = find
        self._entry = CURRENT.get()
        self._seats = Seats()
        self._waits = WaitBudget()
        self._ends = LateEnds()
        self._writer = Writer(context, self._seats, self._ends)
        self._failure: Exception | None = None
        """Set when it cannot be read any more."""
        self._is_waiting = False
        """For the next message of the relay."""
        self._is_heard = True
        """Since the last look."""
        self._silent = 0
        """Looks in a row without a word."""

    async def run(self) -> Status | None:
        """Serve until the stream ends; return the status to end it with, if any."""
        end = await self._begin()
        if end is not None:
            return end
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        try:
            async with asyncio.TaskGroup() as tasks:
                others = [tasks.create_task(one) for one in (self._read_all(), self._ends.run())]
                await self._writer.run()
                for task in others:
                    task.cancel()
            if self._failure is not None:
                raise self._failure
            return self._writer.end
        finally:
            self._looking.cancel()
            if may_log():
                log.info("relay_disconnected", agents=len(self._seats))
            await note_ends((*self._ends.late, *self._seats.remove_all()))

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
            problem = "the first message has it, and nothing else"
            return invalid_status(InvalidMessage("protocol_version", problem))
        if self._entry is not None:
            self._entry.note_joined()
        if may_log():
            log.info("relay_connected")
        self._writer.answer_sign_of_life()
        return None

    # --- Reading ----------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        """Read until the stream ends; leave an exception to the writer, as `AgentService` does."""
        try:
            await self._read()
        except Exception as error:  # noqa: BLE001  # `run` raises it
            self._failure = error
        self._writer.stop(None)

    async def _read(self) -> None:
        try:
            while (request := await self._next()) is not _EOF:
                if len(request.entries) > ENTRIES_MAX:
                    raise InvalidMessage("entries", f"must have at most {ENTRIES_MAX:,} entries")
                if not request.entries:
                    self._writer.answer_sign_of_life()
                for entry in request.entries:
                    await self._seats.wait_for_room()
                    await self._take(entry)
        except InvalidMessage as invalid:
            self._writer.stop(_end_for(invalid, is_logged=may_log))
        except grpc.aio.UsageError:
            pass  # the stream is gone

    async def _next(self) -> Any:
        """Return the relay's next message."""
        self._is_waiting = True
        request = await self._context.read()
        self._is_waiting, self._is_heard = False, True
        return request

    async def _take(self, entry: agent_pb2.RelayedRequest) -> None:
        """Take what has happened to one agent.

        Raises:
            InvalidMessage: when the number of its stream is wrong, which is the relay's own fault.
        """
        number = entry.stream
        if not 0 < number <= NUMBER_MAX:
            raise InvalidMessage("entries.stream", f"must be 1 to {NUMBER_MAX}")
        if entry.HasField("opening"):
            if not self._seats.is_new(number):
                raise InvalidMessage("entries.stream", "must be higher than those before")
            await self._open(entry)
            return
        seat = self._seats.find(number)
        if seat is None or seat.closes_s is not None:
            return
        if entry.HasField("message"):
            if seat.connection.outbox.end is None:  # else something before it may be missing
                await self._receive(seat, entry)
        elif entry.HasField("closing"):
            self._close(seat, still_reads=entry.closing.still_reads)

    async def _open(self, entry: agent_pb2.RelayedRequest) -> None:
        """Admit an agent, or end its stream."""
        held = ExitStack()
        try:
            # What it binds to the log is of this agent alone.
            seat = copy_context().run(self._admit, entry, held)
        except Exception as error:  # noqa: BLE001  # it ends this agent's stream, not those of the others
            seat = _end_for(error, is_logged=may_log)
        if isinstance(seat, Status):
            held.close()
            self._seats.end(entry.stream, seat)
            return
        self._seats.add(seat)
        try:
            await self._submit_hello(seat)
        except CoordinatorEnded:
            seat.connection.outbox.finish(ended_status())

    async def _submit_hello(self, seat: Seat) -> None:
        """Submit the Hello of an agent, or end its stream if there is no room.

        Raises:
            CoordinatorEnded: when no turn will come.
        """
        connections, outbox = seat.place.connections, seat.connection.outbox
        try:
            with connections.submitting(seat.connection):
                await self._waits.submit(connections.coordinator, seat.connection.hello)
        except InboxFull:
            outbox.was_refused = True  # the core knows nothing of it; its host may try again
            outbox.finish(full_status())

    def _admit(self, arrived: agent_pb2.RelayedRequest, held: ExitStack) -> Seat | Status:
        """Return the seat of an agent, or the status to end its stream with.

        Raises:
            InvalidMessage: when its opening breaks the contract.
            AccessRefused: when it may not take part in its job.
            LimitExceeded: when it is too much for its host, or for the relay.
            DecodeError: when its Hello is no message.
        """
        if len(self._seats) >= limits.STREAMS_PER_RELAY_MAX:
            most = limits.STREAMS_PER_RELAY_MAX
            raise LimitExceeded(Limit.STREAMS_PER_RELAY, most, limits.RETRY_S)
        check(arrived)
        number, opening = arrived.stream, arrived.opening
        first = agent_pb2.SessionRequest.FromString(opening.hello)
        if first.WhichOneof("message") == "hello":  # it has reached the relay: this is its host
            first.hello.ClearField("coordinator_addresses")
            first.hello.ClearField("host_addresses")
        opening.ClearField("hello")
        entry, peer, named = None, self._context.peer(), opening.peer
        if self._entry is not None:
            opening.peer = peer = name_by(peer, named) if is_peer(named) else peer
            entry = let_in(self._entry, self._context, opening, first.hello.job_id)
        found = self._find(first)
        if isinstance(found, Status):
            return found
        stream = held.enter_context(self._peers.stream(peer, time.monotonic()))
        bind_caller(self._peers.lines, stream.hosts)
        stream.holder = "" if entry is None else entry.holder
        opened = found.connections.open(first, stream, lambda: self._seats.flag(number))
        if isinstance(opened, Status):
            return opened
        if entry is not None and is_peer(named):
            held.enter_context(self._peers.carried(connected_host(peer), host_of(named)))
        seat = Seat(number, found, opened, held, entry)
        if entry is not None:
            entry.note_joined()
            outbox = opened.outbox
            held.callback(
                hold(entry, self._context, opening, lambda refused: outbox.finish(refused.status))
            )
        return seat

    async def _receive(self, seat: Seat, entry: agent_pb2.RelayedRequest) -> None:
        """Pass on a message of an agent; one that is no good ends its stream."""
        outbox = seat.connection.outbox
        try:
            # Its size needs no check: gRPC lets no larger message of the relay pass.
            envelope = agent_pb2.SessionRequest.FromString(entry.message)
            connections = seat.place.connections
            if connections.is_excess(seat.connection, envelope):
                return
            report = connections.note(seat.connection, envelope)
            if report is not None:
                await self._waits.submit(seat.place.connections.coordinator, report)
        except Exception as error:  # noqa: BLE001  # it ends this agent's stream, not those of the others
            is_logged = partial(self._peers.lines.allow, outbox.hosts, Kind.OTHER)
            session_id = show_session(outbox.session)
            outbox.finish(_end_for(error, is_logged=is_logged, session_id=session_id))

    def _close(self, seat: Seat, *, still_reads: bool) -> None:
        if still_reads and seat.connection.is_leaving:
            seat.closes_s = time.monotonic() + FAREWELL_S_MAX
            return
        if still_reads:
            self._seats.end(seat.number, None)
        self._ends.note(self._seats.remove(seat))

    # --- Silence ----------------------------------------------------------------------------------

    def _look(self) -> None:
        """End the stream of a relay that stands still, and those of agents that have left.

        A coordinator that stood still itself looks once, and then hears what has arrived. One that
        waits for room in an inbox does not read for that moment, whatever the relay says.
        """
        is_silent = self._is_waiting and not self._is_heard
        self._silent = self._silent + 1 if is_silent else 0
        self._is_heard = False
        for seat in self._seats.overdue(time.monotonic()):
            seat.connection.outbox.ended = True
            self._seats.note_due(seat.number)
        if self._silent >= SILENT_LOOKS:
            if may_log():
                log.warning("relay_timed_out", agents=len(self._seats), why="it says nothing")
            self._writer.stop(silent_status(f"nothing arrived for {SILENT_LOOKS * LOOK_S:g} s"))
        else:
            self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)


def _end_for(error: Exception, *, is_logged: Callable[[], bool], **agent: str) -> Status:
    """Return the status that ends a stream; log a message that breaks the contract, and a bug."""
    if isinstance(error, InvalidMessage) and is_logged():
        log.warning("message_rejected", path=error.path, problem=error.problem, **agent)
    return to_status(error) or note_bug(error)
