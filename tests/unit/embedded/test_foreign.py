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

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import DesiredStandby
from rallypoint.embedded import agent_thread
from rallypoint.embedded.agent_thread import AgentGone
from rallypoint.embedded.ended import Ended, EndKind
from rallypoint.embedded.foreign import ForeignNode
from rallypoint.server.core.model.spec import Timing
from rallypoint.v1 import job_pb2
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


def join_both(join: Join) -> tuple[Node, Node]:
    """Return two nodes of one round; a next one needs only one of them."""
    first, second = (join(name, min_nodes=1, last_call=20_000) for name in ("n0", "n1"))
    first.begin(), second.begin()
    return first, second


def test_success(join: Join) -> None:
    """A round that succeeds on all nodes ends the job for each of them."""
    nodes = [join("n0"), join("n1")]
    orders = [node.begin() for node in nodes]
    assert sorted(order.assignment.group_rank for order in orders) == [0, 1]
    assert {order.header.master_port for order in orders} == {orders[0].header.master_port}
    for node in nodes:
        node.exited(0, exit_code=0)
    for node in nodes:
        assert node.wait_stop()
        node.stopped("done")
        ended = node.end()
        assert (ended.kind, ended.exit_code) == (EndKind.FINISHED, 0)
        assert ended.finished is not None
        assert ended.finished.outcome == job_pb2.OUTCOME_SUCCEEDED


def test_given_up_round(join: Join) -> None:
    """A launcher that stops its round takes part in the next, and so do the others."""
    first, second = join("n0"), join("n1")
    number = first.begin().number
    second.begin()
    first.stopped("its workers restart")
    assert "its workers restart" in second.wait_stop()
    second.stopped("asked to")
    again = [first.begin(), second.begin()]
    assert {order.number for order in again} == {number + 1}
    assert first.stop_reason is None


def test_failure(join: Join) -> None:
    """A failure is reported with its exit code, and ends a job without restarts everywhere."""
    first, second = join("n0"), join("n1")
    first.begin(), second.begin()
    second.exited(0, exit_code=3)
    assert "exit code 3" in first.wait_stop()
    for node in (first, second):
        node.stopped("failed")
    for node in (first, second):
        ended = node.end()
        assert (ended.kind, ended.exit_code) == (EndKind.FINISHED, 1)
        assert ended.finished is not None and "exit code 3" in ended.finished.verdict.text


def test_node_that_leaves(join: Join) -> None:
    """A node that leaves stops the round of the others, which form the next without it."""
    first, second = join_both(join)
    second.leave("its work is done")
    assert second.wait_stop() == "its work is done"
    second.stopped("asked to")
    assert second.end().kind is EndKind.LEFT
    assert "its work is done" in first.wait_stop()
    first.stopped("asked to")
    assert first.begin().header.group_world_size == 1


def test_withdrawn_order(join: Join) -> None:
    """An order that is stopped before it is taken never starts."""
    first, second = join("n0"), join("n1")
    first.begin()  # the second node has the same order, and does not take it
    first.stopped("its workers restart")
    number = first.begin().number
    assert second.begin().number == number == 2


def test_timeout(join: Join) -> None:
    """A wait without a second node has a limit."""
    node = join("n0")
    with pytest.raises(TimeoutError, match=r"no round was formed within 0\.2 s"):
        node.await_order(0.2)


def test_refused(join: Join) -> None:
    """A node with another specification learns why it is refused."""
    join("n0", min_nodes=1, max_nodes=1).begin()
    ended = join("n1", max_nodes=3).await_order(20)
    assert isinstance(ended, Ended) and ended.kind is EndKind.REFUSED
    assert "--nnodes is 1:1 there and 2:3 here" in ended.text


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


def test_unreachable() -> None:
    """Without a coordinator the agent ends after its limit."""
    node = Node("127.0.0.1:1", "n0")
    ended = node.await_order(20)
    assert isinstance(ended, Ended) and ended.kind is EndKind.UNREACHABLE
    assert node.absence is not None and "cannot connect" in node.absence.why


def test_spare(join: Join) -> None:
    """A spare learns that it was one when the job ends without it."""
    node = join("n0", min_nodes=1, max_nodes=1)
    node.begin()
    spare = join("n1", min_nodes=1, max_nodes=1)
    wait_until_spare(spare)
    node.exited(0, exit_code=0)
    node.wait_stop()
    node.stopped("done")
    ended = spare.end()
    assert ended.kind is EndKind.FINISHED and ended.was_spare and ended.exit_code == 0


def wait_until_spare(node: Node) -> None:
    """Wait until the coordinator has made the node a spare."""
    is_spare = threading.Event()

    def watch() -> None:
        post = node.agent.post

        def note(input: inputs.Input) -> None:
            post(input)
            if isinstance(node.agent.state.desired, DesiredStandby):
                is_spare.set()

        node.agent.post = note  # type: ignore[method-assign]
        note(inputs.TimePassed())

    node.call(watch)
    assert is_spare.wait(20)


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
    async def listen_late() -> AsyncIterator[tuple[str, Access, asyncio.Future[None]]]:
        await asyncio.to_thread(may_listen.wait)
        yield server.address, PLAIN, asyncio.get_running_loop().create_future()

    monkeypatch.setattr(agent_thread, "BEGIN_S_MAX", 0.01)
    late = ForeignNode(plan_of(None, "late"), listen_late)
    with pytest.raises(AgentGone, match="did not begin"):
        late.start()
    late.leave("the program ends", 1)
    may_listen.set()

    assert late.join(LIMIT_S)
    assert late.ended is not None and late.ended.kind is EndKind.LEFT
