"""Workers of another launcher: they get orders, stop when they have to, and report."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rallypoint.embedded import agent_thread
from rallypoint.embedded.agent_thread import AgentGone
from rallypoint.embedded.ended import EndKind
from rallypoint.embedded.foreign import ForeignNode
from rallypoint.server.core.model.spec import Timing
from rallypoint.wire.access import PLAIN, Access
from support.embedded.nodes import LIMIT_S, CoordinatorThread, Node, coordinator, plan_of

Join = Callable[..., Node]


@pytest.fixture
def server() -> Iterator[CoordinatorThread]:
    with coordinator() as thread:
        yield thread


@pytest.fixture
def join(server: CoordinatorThread) -> Iterator[Join]:
    nodes: list[Node] = []

    def join(name: str, **more: Any) -> Node:
        two: dict[str, Any] = {"min_nodes": 2, "max_nodes": 2, "last_call": 0}
        nodes.append(Node(server.address, name, **(two | more)))
        return nodes[-1]

    yield join
    for node in nodes:
        node.finish()


def test_withdrawn_order(join: Join) -> None:
    """An order that is stopped before it is taken never starts."""
    first, second = join("n0"), join("n1")
    first.begin()  # the second node has the same order, and does not take it
    first.stopped("its workers restart")
    number = first.begin().number
    assert second.begin().number == number == 2


def test_outage() -> None:
    """A coordinator that is away for a moment stops nothing."""
    with coordinator(Timing()) as server:
        _check_outage(server)


def _check_outage(server: CoordinatorThread) -> None:
    node = Node(server.address, "n0")
    node.begin()
    server.stop()
    server.start()
    node.call(node.agent.link.wake)
    is_back = threading.Event()
    node.agent.on_message = _notice(node.agent.on_message, is_back)  # type: ignore[assignment, method-assign]
    assert is_back.wait(20)
    assert node.stop_reason is None
    node.exited(0, exit_code=0)
    node.wait_stop()
    node.stopped("done")
    assert node.end().kind is EndKind.FINISHED


def _notice(call: Callable[[Any], None], event: threading.Event) -> Callable[[Any], None]:
    def notice(message: Any) -> None:
        call(message)
        event.set()

    return notice


def test_interpreter_exit() -> None:
    """A program that ends with an agent says goodbye, and is not held up."""
    script = """
        import sys
        from support.embedded.nodes import Node
        node = Node(sys.argv[1], "n0", min_nodes=1)
        print(node.begin().number, flush=True)
    """
    with coordinator() as server:
        other = Node(server.address, "n1", min_nodes=2, max_nodes=2)
        command = [sys.executable, "-c", textwrap.dedent(script).replace("=1)", "=2, max_nodes=2)")]
        path = os.pathsep.join(["tests", *sys.path])
        run = subprocess.Popen(
            [*command, server.address], env={**os.environ, "PYTHONPATH": path}, text=True
        )
        try:
            other.begin()
            assert "its process exits" in other.wait_stop()
            assert run.wait(20) == 0
        finally:
            run.kill()
            run.wait()
            other.finish()


def test_agent_that_is_left_before_it_begins_ends(
    server: CoordinatorThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A built-in coordinator may take longer to listen than the program waits."""
    may_listen = threading.Event()

    @asynccontextmanager
    async def listen_late(_: None) -> AsyncIterator[tuple[str, Access, asyncio.Future[None]]]:
        await asyncio.to_thread(may_listen.wait)
        yield server.address, PLAIN, asyncio.get_running_loop().create_future()

    monkeypatch.setattr(agent_thread, "BEGIN_S_MAX", 0.01)
    monkeypatch.setattr(agent_thread, "reaching_coordinator", listen_late)
    late = ForeignNode(plan_of(None, "late"))
    with pytest.raises(AgentGone, match="did not begin"):
        late.start()
    late.leave("the program ends", 1)
    may_listen.set()

    assert late.join(LIMIT_S)
    assert late.ended is not None and late.ended.kind is EndKind.LEFT
