"""EventService: only events that are in the journal are shown."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

from rallypoint.server.access.usage.peers import host_of
from rallypoint.server.access.usage.stalls import Stalls
from rallypoint.server.api.events.reading import (
    Asked,
    Place,
    Reader,
    begin,
    list_answer,
    to_list,
    to_watch,
    watch_answer,
)
from rallypoint.server.api.events.waits import EventWaits, EventWatch
from rallypoint.server.contract.calls import Context, is_set_within
from rallypoint.server.contract.pace import Pace
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import event_service_pb2_grpc as events_grpc

PROGRESS_S = 5.0
"""How often a watch learns how far it is, when none of the new events is for it. After an
interruption it need not begin where events are lost."""
PAUSE_S = 0.02
"""Shortest time between two answers of a watch: a job whose nodes join one after another makes few
answers with many events."""


class EventService(events_grpc.EventServiceServicer):
    """Serves people and programs that follow what happens."""

    def __init__(self, coordinator: Coordinator, waits: EventWaits, pace: Pace) -> None:
        """Read from `coordinator`; `waits` wakes watches; all readers share `pace`."""
        self._coordinator = coordinator
        self._waits = waits
        self._reader = Reader(coordinator, pace)
        self._stalls = Stalls()

    async def ListEvents(
        self, request: events_pb2.ListEventsRequest, context: Context
    ) -> events_pb2.ListEventsResponse:
        """Return a page of events."""
        asked, place = to_list(request)
        if place is None:
            place = await self._coordinator.read(partial(self._begin, asked))
        batch = await self._reader.take(asked, place)
        return list_answer(batch, place)

    async def WatchEvents(  # type: ignore[override]  # a handler may write instead of yield
        self, request: events_pb2.WatchEventsRequest, context: Context
    ) -> None:
        """Send events and those to come."""
        asked = to_watch(request)
        with self._waits.watching(asked.job_id, host_of(context.peer())) as watch:
            place = await self._coordinator.read(partial(self._begin, asked))
            async with self._stalls.writing(context) as write:
                await self._send_all(asked, place, watch, write)

    @staticmethod
    def _begin(asked: Asked, state: State, now_ms: int) -> Place:
        return begin(asked, state)

    async def _send_all(
        self,
        asked: Asked,
        place: Place,
        watch: EventWatch,
        write: Callable[[Any], Awaitable[None]],
    ) -> NoReturn:
        """Send a watch its first answer at once, and then every event, until the call ends."""
        is_due = True
        while True:
            watch.changed.clear()
            batch = await self._reader.take(asked, place)
            if batch.encoded or is_due:
                await write(watch_answer(batch, place))
            is_due = False
            if not batch.has_more:
                await asyncio.sleep(PAUSE_S)
                is_due = await self._wait(watch, place)

    async def _wait(self, watch: EventWatch, place: Place) -> bool:
        """Wait until a watch has to look; return whether it is due to learn how far it is."""
        while not watch.changed.is_set():
            pause_s = PROGRESS_S * random.uniform(0.5, 1)  # so that not all watches look at once
            is_woken = await is_set_within(watch.changed, pause_s)
            if not is_woken and self._waits.last > place.after:
                return True
        return False
