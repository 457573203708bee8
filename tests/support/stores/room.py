"""A coordinator in a thread, with one node that has joined: stores need the token of its round."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from rallypoint.server.core.model.spec import Timing
from rallypoint.torch import Store
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from support.core.served import Agent, Served, served

LIMIT_S = 20.0
PATIENT = Timing(window_ms=0, lease_ms=600_000, start_due_ms=600_000)
"""The node sends no heartbeats."""
Result = TypeVar("Result")


class Room:
    """What a test uses from its own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Served, world_size: int) -> None:
        self._loop = loop
        self._server = server
        self._agent: Agent
        self.world_size = world_size
        self.job_id = "job"
        self.target = f"127.0.0.1:{server.running.port}"
        self.order: agent_pb2.RunOrder
        """Of the current round."""
        self.call(self._join())

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    @property
    def environ(self) -> dict[str, str]:
        """What a worker of the round has in its environment."""
        return {
            "RALLYPOINT_COORDINATOR": self.target,
            "RALLYPOINT_JOB_ID": self.job_id,
            "RALLYPOINT_WORKER_TOKEN": self.order.worker_token,
            "RALLYPOINT_EPOCH": str(self._agent.epoch),
            "WORLD_SIZE": str(self.world_size),
        }

    def store(self, **fields: Any) -> Store:
        """Return a store of the current round."""
        return Store.from_environment(self.environ, **fields)

    def begin_round(self) -> None:
        """End the round, and begin the next."""
        self.call(self._begin_round())

    async def _join(self) -> None:
        self._agent = self._server.agent(self.job_id, 1)
        await self._agent.hello(local_world_size=self.world_size)
        self.order = (await self._agent.read()).welcome.desired.run

    async def _begin_round(self) -> None:
        round = self.order.header.number
        await self._agent.report(leaving=agent_pb2.Leaving(round=round, text="again"))
        await self._agent.report(ready=agent_pb2.Ready(round=round, master_port=20_001))
        while not (message := await self._agent.read()).desired.HasField("run"):
            pass
        self.order = message.desired.run


@contextmanager
def rooms(world_size: int = 8) -> Iterator[Room]:
    """Serve a coordinator and a round while the context is open."""
    opened: Future[tuple[asyncio.AbstractEventLoop, Served]] = Future()
    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(opened, ended)))
    thread.start()
    try:
        loop, server = opened.result(LIMIT_S)
        yield Room(loop, server, world_size)
    finally:
        ended.set()
        thread.join(LIMIT_S)


async def _serve(
    opened: Future[tuple[asyncio.AbstractEventLoop, Served]], ended: threading.Event
) -> None:
    try:
        async with served(PATIENT) as server:
            opened.set_result((asyncio.get_running_loop(), server))
            await asyncio.to_thread(ended.wait)
    except Exception as error:
        if opened.done():
            raise
        opened.set_exception(error)
