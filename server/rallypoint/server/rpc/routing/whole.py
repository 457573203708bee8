"""Calls about all jobs, which no single shard can answer."""

from __future__ import annotations

from typing import Any

from rallypoint.server.rpc.about.views import start_now
from rallypoint.server.rpc.calls import Context
from rallypoint.server.rpc.guards.access.protection import OPEN, Protection, describe
from rallypoint.server.rpc.routing.directory import Directory
from rallypoint.server.rpc.routing.merging.about import get_coordinator
from rallypoint.server.rpc.routing.merging.events import list_events, watch_events
from rallypoint.server.rpc.routing.merging.jobs import list_jobs, watch_jobs
from rallypoint.server.rpc.routing.merging.parts import Parts
from rallypoint.server.rpc.routing.table import Route
from rallypoint.server.rpc.stalls import Stalls


class Whole:
    """Answers for all shards together."""

    def __init__(self, directory: Directory, parts: Parts, protection: Protection = OPEN) -> None:
        """Start now; `parts` asks the shards, and `protection` is this coordinator's."""
        self._directory = directory
        self._parts = parts
        self._protection = protection
        self._start = start_now()
        self._stalls = Stalls()

    async def answer(self, route: Route, request: Any, context: Context) -> Any:
        """Return the answer to a call."""
        match route.name:
            case "GetCoordinator":
                about = await get_coordinator(
                    self._parts, route, self._directory, self._start, context
                )
                describe(about, self._protection)
                return about
            case "ListJobs":
                return await list_jobs(self._parts, route, request, context)
            case "ListEvents":
                return await list_events(self._parts, route, request, context)
        raise AssertionError(f"{route.path} is not about all jobs")

    async def write(self, route: Route, request: Any, context: Context) -> None:
        """Write the answers to a watch until it ends."""
        watches: dict[str, Any] = {"WatchJobs": watch_jobs, "WatchEvents": watch_events}
        # A status that came while the first answer is being sent would bring the initial metadata a
        # second time. gRPC refuses that, and the client would never learn of the end.
        await context.send_initial_metadata(())
        async with self._stalls.writing(context) as write:

            async def take(shard: int, answer: Any) -> None:
                await write(answer)

            await watches[route.name](self._parts, route, request, context, take)
