"""Nodes whose workers a test runs by hand, and a coordinator in a thread for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.launch.meeting_point import MeetingPoint
from rallypoint.agent.launch.options import JobOptions
from rallypoint.agent.launch.plan import LaunchPlan
from rallypoint.embedded.ended import Ended
from rallypoint.embedded.foreign import ForeignNode
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.serve import Settings, serving

LIMIT_S = 20.0


class CoordinatorThread:
    """A coordinator in a thread; `stop` and `start` again keep its port."""

    def __init__(self, timing: Timing | None = None) -> None:
        self.port = 0
        self._timing = timing or Timing(window_ms=0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._stop = asyncio.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._ready.clear()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(LIMIT_S)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Event loops of one process share gRPC's pipe: another one was faster.
        self._loop.set_exception_handler(_ignore_blocking)
        async with serving(Settings("127.0.0.1", self.port, self._timing)) as running:
            self.port = running.port
            self._ready.set()
            await self._stop.wait()

    def stop(self) -> None:
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(LIMIT_S)
            self._thread = None


def _ignore_blocking(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


@contextmanager
def coordinator(timing: Timing | None = None) -> Iterator[CoordinatorThread]:
    """Serve a coordinator in a thread while the context is open."""
    thread = CoordinatorThread(timing)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def plan_of(
    address: str | None, name: str, *, min_nodes: int = 1, max_nodes: int = 1, **options: Any
) -> LaunchPlan:
    """Return the plan of a node of job `j`."""
    return LaunchPlan(
        meeting=MeetingPoint(address, None, "j"),
        options=JobOptions(node_name=name, coordinator_timeout=5_000, **options),
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        address="127.0.0.1",
    )


class Node(ForeignNode):
    """A node with a worker that does not exist."""

    def __init__(self, address: str, name: str, **more: Any) -> None:
        super().__init__(plan_of(address, name, **more))
        self.start()

    def begin(self) -> RunOrder:
        """Wait for a round and report its worker as started."""
        order = self.await_order(LIMIT_S)
        assert isinstance(order, RunOrder), order
        self.started([4_000])
        return order

    def wait_stop(self) -> str:
        """Wait until the coordinator wants the round stopped; return why."""
        self.wait(lambda view: self._stop_reason is not None, LIMIT_S)
        reason = self.stop_reason
        assert reason is not None
        return reason

    def end(self) -> Ended:
        """Wait for the end of the agent."""
        ended = self.wait_ended(LIMIT_S)
        assert ended is not None
        return ended

    def finish(self) -> None:
        """Leave, whatever happened before."""
        self.stopped("the test is over")
        assert self.close("the test is over", LIMIT_S)
