"""EventService: only events that are in the journal are shown."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc

from rallypoint.base.log import get_logger
from rallypoint.server.coordinator import Coordinator, InputRefused
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.convert.checks import InvalidMessage
from rallypoint.server.rpc.errors import limit_status, refusal_status, stalled_status
from rallypoint.server.rpc.events.reading import (
    Asked,
    Place,
    Reader,
    begin,
    list_answer,
    to_list,
    to_watch,
    watch_answer,
)
from rallypoint.server.rpc.events.waits import EventWatch
from rallypoint.server.rpc.guards.lines import may_log
from rallypoint.server.rpc.guards.peers import LimitExceeded, host_of
from rallypoint.server.rpc.outbox import Outboxes
from rallypoint.server.rpc.reading.pace import Pace
from rallypoint.server.rpc.stalls import Stalls
from rallypoint.server.rpc.status import abort_with, invalid_status
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import event_service_pb2_grpc as events_grpc

log = get_logger()

PROGRESS_S = 5.0
"""How often a watch learns how far it is, when none of the new events is for it. After an
interruption it need not begin where events are lost."""
PAUSE_S = 0.02
"""Shortest time between two answers of a watch: a job whose nodes join one after another makes few
answers with many events."""
STALL_S_MAX = 30.0
"""Longest time that a watch may take to read an answer."""

T = TypeVar("T")
_Context = grpc.aio.ServicerContext[Any, Any]


class EventService(events_grpc.EventServiceServicer):
    """Serves people and programs that follow what happens."""

    def __init__(self, coordinator: Coordinator, outboxes: Outboxes, pace: Pace) -> None:
        """Read from `coordinator`; `outboxes` wakes watches; all readers share `pace`."""
        self._coordinator = coordinator
        self._waits = outboxes.events
        self._reader = Reader(coordinator, pace)
        self._stalls = Stalls()

    async def ListEvents(
        self, request: events_pb2.ListEventsRequest, context: _Context
    ) -> events_pb2.ListEventsResponse:
        """Return a page of events."""
        return await self._answer(context, self._list(request))

    async def WatchEvents(  # type: ignore[override]  # a handler may write instead of yield
        self, request: events_pb2.WatchEventsRequest, context: _Context
    ) -> None:
        """Send events and those to come."""
        await self._answer(context, self._watch(request, context))

    async def _answer(self, context: _Context, work: Awaitable[T]) -> T:
        """Return the answer to a call, or end it with the status of its refusal."""
        try:
            return await work
        except InvalidMessage as invalid:
            await abort_with(context, invalid_status(invalid.path, invalid.problem))
        except LimitExceeded as full:
            await abort_with(context, limit_status(full))
        except InputRefused as refused:
            await abort_with(context, refusal_status(refused.refusal))

    async def _list(self, request: events_pb2.ListEventsRequest) -> events_pb2.ListEventsResponse:
        asked, place = to_list(request)
        if place is None:
            place = await self._coordinator.read(lambda state, now_ms: begin(asked, state))
        batch = await self._reader.take(asked, place)
        return list_answer(batch, place)

    async def _watch(self, request: events_pb2.WatchEventsRequest, context: _Context) -> None:
        asked = to_watch(request)
        watch = EventWatch(asked.job_id, host_of(context.peer()))
        self._waits.enter(watch)
        try:
            place = await self._coordinator.read(partial(self._begin, asked))
            async with asyncio.timeout(None) as scope:
                await self._send_all(asked, place, watch, scope, context)
        except TimeoutError:
            if may_log():
                log.warning("watcher_stalled", limit_s=STALL_S_MAX)
            await abort_with(context, stalled_status(STALL_S_MAX))
        finally:
            self._waits.leave(watch)

    @staticmethod
    def _begin(asked: Asked, state: State, now_ms: int) -> Place:
        return begin(asked, state)

    async def _send_all(
        self,
        asked: Asked,
        place: Place,
        watch: EventWatch,
        scope: asyncio.Timeout,
        context: _Context,
    ) -> NoReturn:
        """Send a watch its first answer at once, and then every event, until the call ends."""
        is_due = True
        while True:
            watch.changed.clear()
            batch = await self._reader.take(asked, place)
            if batch.encoded or is_due:
                self._stalls.begin(scope, STALL_S_MAX)
                try:
                    await context.write(watch_answer(batch, place))
                finally:
                    self._stalls.end(scope)
            is_due = False
            if not batch.has_more:
                await asyncio.sleep(PAUSE_S)
                is_due = await self._wait(watch, place)

    async def _wait(self, watch: EventWatch, place: Place) -> bool:
        """Wait until a watch has to look; return whether it is due to learn how far it is."""
        while not watch.changed.is_set():
            pause_s = PROGRESS_S * random.uniform(0.5, 1)  # so that not all watches look at once
            try:
                async with asyncio.timeout(pause_s):
                    await watch.changed.wait()
            except TimeoutError:
                if self._waits.last > place.after:
                    return True
        return False
