"""The streams to all coordinators that the relay needs.

One of them is home: the first that answers, of those that the relay was given. Every agent is tried
there. A coordinator that does not own the agent's job names the owner, and the relay goes there
itself: its agents need no way to the coordinators.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from google.rpc.status_pb2 import Status

from rallypoint.base.addresses import parse_endpoint
from rallypoint.base.log import get_logger
from rallypoint.relay.agent import Agent, End, unavailable
from rallypoint.relay.uplink import Uplink
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.coordinators import HOPS_MAX, Coordinators
from rallypoint.wire.credentials import Credentials

log = get_logger()

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0
"""Longest pause between attempts: shorter than that of agents, which wait for the relay."""
HOME_S_MAX = 1.0
"""How long an agent waits for a relay that has no coordinator at the moment."""
UPLINKS_MAX = 64
"""Coordinators at once; a store has fewer."""


class Uplinks:
    """The streams to coordinators."""

    def __init__(self, targets: str, credentials: Credentials) -> None:
        """Begin without any.

        Args:
            targets: host:port of the coordinator, or of several with commas in between.
            credentials: how the relay proves who it is.
        """
        self.on_home: Callable[[], None] = lambda: None
        """Called when home has changed."""
        self._coordinators = Coordinators(targets.split(","))
        self._credentials = credentials
        self._uplinks: dict[str, Uplink] = {}
        """By address; those that have not ended."""
        self._tasks: asyncio.TaskGroup | None = None
        self._has_ended = False
        self._home: Uplink | None = None
        self._changed = asyncio.Event()
        self._problem = "it has not reached one yet"
        self._problems = dict[str, str]()
        """Of each coordinator that was not reached since one was: the problem that was logged."""

    @property
    def home(self) -> str:
        """Return `host:port` of home; empty: no coordinator is reached."""
        return "" if self._home is None else self._home.target

    async def run(self) -> None:
        """Stay connected to one coordinator, and to others as they are needed, until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    await self._stay_home()
                finally:
                    self._has_ended = True  # agents that come now find no stream any more
        finally:
            self._home = None

    async def _stay_home(self) -> None:
        backoff_s = BACKOFF_S_MIN
        while True:
            target = self._coordinators.target
            uplink = self._find(target)
            await uplink.ready.wait()
            is_reached = not uplink.has_ended
            if is_reached:
                backoff_s = BACKOFF_S_MIN
                self._coordinators.welcomed()
                self._problems.clear()
                self._set_home(uplink)
                log.info("coordinator_reached", coordinator=target)
                await uplink.gone.wait()
                self._set_home(None)
            problem = self._problem = uplink.problem
            if problem != self._problems.get(target):
                self._problems[target] = problem
                event = "coordinator_lost" if is_reached else "coordinator_not_reached"
                log.warning(event, coordinator=target, why=problem)
            if not self._coordinators.failed():
                await asyncio.sleep(random.uniform(backoff_s / 2, backoff_s))
                backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)

    def _set_home(self, uplink: Uplink | None) -> None:
        self._home = uplink
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self.on_home()

    def _find(self, target: str) -> Uplink:
        """Return the stream to a coordinator, a new one if there is none."""
        uplink = self._uplinks.get(target)
        if uplink is None or uplink.has_ended:
            assert self._tasks is not None, "it runs"
            uplink = self._uplinks[target] = Uplink(target, self._credentials)
            self._tasks.create_task(self._keep(uplink))
        return uplink

    async def _keep(self, uplink: Uplink) -> None:
        try:
            await uplink.run()
        finally:
            if self._uplinks.get(uplink.target) is uplink:
                del self._uplinks[uplink.target]

    async def at_home(self) -> str:
        """Return `host:port` of home; empty if there is none for a moment."""
        try:
            async with asyncio.timeout(HOME_S_MAX):
                while self._home is None:
                    await self._changed.wait()
        except TimeoutError:
            return ""
        return self.home

    async def open(self, agent: Agent) -> Seat | End:
        """Open the stream of an agent at home, or return how it ends."""
        target = await self.at_home()
        if not target:
            return unavailable(f"the relay reaches no coordinator: {self._problem}")
        return await self._open_at(agent, target)

    async def follow(self, agent: Agent, hops: int) -> Seat | End | None:
        """Open the stream of an agent at the owner of its job, if a coordinator has named one.

        Args:
            agent: whose stream has ended.
            hops: how often it was sent elsewhere before.

        Returns: None: the agent gets the end as it is.
        """
        end = agent.end
        if end is None or agent.is_answered or hops >= HOPS_MAX:
            return None
        owner = _find_owner(end)
        if owner is None or (owner not in self._uplinks and len(self._uplinks) >= UPLINKS_MAX):
            return None
        agent.end = None
        return await self._open_at(agent, owner)

    async def _open_at(self, agent: Agent, target: str) -> Seat | End:
        if self._has_ended:
            return unavailable("the relay ends")
        uplink = self._find(target)
        await uplink.ready.wait()
        if uplink.has_ended:
            return unavailable(f"the relay cannot reach {target}: {uplink.problem}")
        if uplink.is_full:
            text = f"{target} reads too slowly what the relay has for it"
            return unavailable(f"{text}; the agent tries again: look at the load there")
        return Seat(uplink, uplink.open(agent))


class Seat:
    """An agent's place at a coordinator."""

    def __init__(self, uplink: Uplink, number: int) -> None:
        """Keep the number of its stream there."""
        self.send = partial(uplink.send, number)
        self.done_sending = partial(uplink.done_sending, number)
        self.close = partial(uplink.close, number)


def _find_owner(end: End) -> str | None:
    """Return `host:port` of the coordinator that owns the job, if an end names it."""
    owner = details_pb2.NotOwner()
    for packed in Status.FromString(end.details).details:
        if packed.Unpack(owner):
            return parse_endpoint(owner.address)
    return None
