"""The handler as torchrun calls it: rounds, errors and ends, with a real coordinator."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib import metadata
from types import FrameType
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousParameters,
    api,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from rallypoint.client import Client
from rallypoint.torch.rendezvous import NAME, create_handler, register
from rallypoint.torch.rendezvous.handler import CoordinatorRendezvousHandler
from rallypoint.v1 import job_pb2, node_pb2
from support.embedded.nodes import coordinator
from support.torchrun.handlers import Call, Handlers, wait_stopped
from support.torchrun.plugin import DOOR

Handler = CoordinatorRendezvousHandler


@pytest.fixture
def address() -> Iterator[str]:
    with coordinator() as server:
        yield server.address


@pytest.fixture
def job(address: str) -> Iterator[Handlers]:
    with Handlers(address) as handlers:
        yield handlers


@pytest.fixture
def pair(job: Handlers) -> tuple[Handler, Handler]:
    """Two handlers in one round."""
    first, second = job.new("n0"), job.new("n1")
    infos = job.form(first, second)
    return (first, second) if infos[0].rank == 0 else (second, first)


def end_with(handler: Handler, error: BaseException) -> bool:
    """Call `shutdown` as torch does: while the exception is on its way."""
    try:
        raise error
    except BaseException:  # noqa: BLE001  # torch has a `finally` here
        return handler.shutdown()


def crash_of_spare() -> AttributeError:
    """Return what torch raises after a graceful exit: it takes an attribute of nothing."""
    text = "'NoneType' object has no attribute 'is_failed'"
    return AttributeError(text, name="is_failed", obj=None)


def failure(exit_code: int) -> ChildFailedError:
    return ChildFailedError("train.py", {5: ProcessFailure(1, 77, exit_code, "<N/A>")})


def connect(info: Any) -> Any:
    """Connect to the TCPStore of a round, as its workers do."""
    one = info.bootstrap_store_info
    return dist.TCPStore(  # type: ignore[attr-defined]
        one.master_addr, one.master_port, is_master=False, timeout=timedelta(seconds=10)
    )


def test_registered() -> None:
    """torch finds the back end by its entry point; torch before 2.6 needs a call."""
    if DOOR:
        register()
    params = RendezvousParameters("rallypoint", "localhost:1", "j", 1, 1)
    handler = get_rendezvous_handler(params)
    assert isinstance(handler, Handler)
    assert (handler.get_backend(), handler.get_run_id()) == ("rallypoint", "j")
    assert not handler.is_closed() and handler.num_nodes_waiting() == 0
    assert handler.shutdown()  # it has not begun, so nothing has to end


def test_round(job: Handlers) -> None:
    """All nodes get the same round; what one writes to the store, the others read."""
    infos = sorted(job.form(job.new("n0"), job.new("n1")), key=lambda info: info.rank)
    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    assert infos[0].bootstrap_store_info == infos[1].bootstrap_store_info
    infos[0].store.set("k", "v")
    assert infos[1].store.get("k") == b"v"
    connect(infos[1]).set("a", "1")  # it listens already
    assert connect(infos[0]).get("a") == b"1"


def test_restart_of_one_node(job: Handlers, pair: tuple[Handler, Handler]) -> None:
    """The others restart too, and nothing of the earlier round is left in the stores."""
    first, second = pair
    assert first.num_nodes_waiting() == second.num_nodes_waiting() == 0
    again = Call(first.next_rendezvous)
    assert "torchrun restarts its workers after a failure" in wait_stopped(second)
    info = second.next_rendezvous()
    other = again.result()
    assert (info.rank, other.rank) == (1, 0), "nodes keep their ranks"
    assert first.num_nodes_waiting() == second.num_nodes_waiting() == 0
    assert not info.store.check(["k"])


def test_stores_of_earlier_rounds(job: Handlers) -> None:
    """Each round has a fresh TCPStore and a fresh store of the launchers."""
    handler = job.new("n0", nodes=(1, 1))
    (before,) = job.form(handler)
    before.store.set("k", "old")
    connect(before).set("k", "old")
    (after,) = job.form(handler)
    assert before.bootstrap_store_info != after.bootstrap_store_info
    assert not after.store.check(["k"]) and not connect(after).check(["k"])


def test_node_that_fails_for_good(pair: tuple[Handler, Handler]) -> None:
    """The job fails for the others, although their workers are fine."""
    first, second = pair
    ending = Call(lambda: end_with(first, failure(7)))
    assert "exit code 7" in wait_stopped(second)
    with pytest.raises(api.RendezvousClosedError, match=r"node n. failed first: exit code 7"):
        second.next_rendezvous()
    assert second.is_closed() and ending.result()
    assert end_with(second, api.RendezvousClosedError())


def test_node_that_dies_of_a_signal_for_good(pair: tuple[Handler, Handler]) -> None:
    """The verdict names the signal."""
    ending = Call(lambda: end_with(pair[0], failure(-signal.SIGSEGV)))
    wait_stopped(pair[1])
    with pytest.raises(api.RendezvousClosedError, match="SIGSEGV"):
        pair[1].next_rendezvous()
    assert ending.result()


def test_failure_for_good_while_the_round_stops(pair: tuple[Handler, Handler]) -> None:
    """Two nodes fail at once: the one without restarts ends the job for the other."""
    first, second = pair
    again = Call(first.next_rendezvous)
    wait_stopped(second)
    assert end_with(second, failure(7))
    with pytest.raises(api.RendezvousClosedError, match="rank 5 failed with exit code 7"):
        again.result()


def test_success(address: str, pair: tuple[Handler, Handler]) -> None:
    """The job succeeds once every node has."""
    calls = [Call(one.shutdown) for one in pair]
    assert [call.result() for call in calls] == [True, True]
    with Client(address) as client:
        assert client.get_job("j").job.outcome == job_pb2.OUTCOME_SUCCEEDED


def test_interrupted_launcher(job: Handlers) -> None:
    """It leaves, and the others form a round without it."""
    job.nodes = (1, 2)
    first, second = job.new("n0"), job.new("n1")
    job.form(first, second)
    end_with(first, KeyboardInterrupt())
    assert "torchrun ends: KeyboardInterrupt" in wait_stopped(second)
    assert second.next_rendezvous().world_size == 1


def test_closed(pair: tuple[Handler, Handler]) -> None:
    """`set_closed` ends the job for every node."""
    first, second = pair
    first.set_closed()
    wait_stopped(second)
    for one in pair:
        with pytest.raises(api.RendezvousClosedError, match="closed the rendezvous"):
            one.next_rendezvous()
        assert one.is_closed()


def test_closed_while_workers_run(job: Handlers, pair: tuple[Handler, Handler]) -> None:
    """It looks closed on every node at once, and a node that comes meanwhile does not wait long."""
    first, second = pair
    assert not first.is_closed() and not second.is_closed()
    first.set_closed()
    wait_stopped(first)
    wait_stopped(second)
    assert first.is_closed() and second.is_closed()
    limits: tuple[dict[str, float], ...] = (
        {"read_timeout": 0.5, "join_timeout": 60},
        {"read_timeout": 60, "join_timeout": 0.5},
    )
    for config in limits:
        third = job.new("n2", **config)
        with pytest.raises(api.RendezvousClosedError, match="run 1 of job j is still ending"):
            third.next_rendezvous()


def test_shutdown_again(job: Handlers) -> None:
    """A second `shutdown` returns what the first did, also where the job has not ended yet."""
    first, second = job.new("n0", close_timeout=0.1), job.new("n1")
    job.form(first, second)

    assert [True, True] == [first.shutdown(), first.shutdown()]


def test_spare(job: Handlers) -> None:
    """A spare exits with 0 when the job ends, where torch alone would crash."""
    job.nodes = (1, 1)
    first = job.new("n0")
    job.form(first)
    spare = job.new("n1")
    waiting = Call(spare.next_rendezvous)
    job_id = first.get_run_id()
    with Client(job.endpoint) as client:
        for state in client.watch_job(job_id):
            if any(node.spare for node in state.job.nodes):
                break
    first.shutdown()
    with pytest.raises(api.RendezvousGracefulExitError, match="this node was a spare"):
        waiting.result()
    with pytest.raises(SystemExit) as exit:
        end_with(spare, crash_of_spare())
    assert exit.value.code == 0


def test_spare_of_a_job_that_fails(job: Handlers) -> None:
    """It is not needed any more either, although the failed round is stopped first."""
    first, second = job.new("n0"), job.new("n1")
    job.form(first, second)
    waiting = Call(job.new("n2").next_rendezvous)
    with Client(job.endpoint) as client:
        for state in client.watch_job(first.get_run_id()):
            if any(node.spare for node in state.job.nodes):
                break
    ending = Call(lambda: end_with(first, failure(7)))
    wait_stopped(second)
    with pytest.raises(api.RendezvousClosedError):
        second.next_rendezvous()
    with pytest.raises(api.RendezvousGracefulExitError, match="this node was a spare"):
        waiting.result()
    assert ending.result()


def test_drain(job: Handlers) -> None:
    """A node that an operator drains leaves, and torchrun exits with 0."""
    job.nodes = (1, 2)
    first, second = job.new("n0"), job.new("n1")
    job.form(first, second)
    with Client(job.endpoint) as client:
        client.drain_node("j", "n0", drain_timeout_s=0, reason="maintenance")
    wait_stopped(first)
    with pytest.raises(api.RendezvousGracefulExitError, match="maintenance"):
        first.next_rendezvous()
    with pytest.raises(SystemExit) as exit:
        end_with(first, crash_of_spare())
    assert exit.value.code == 0
    wait_stopped(second)
    assert second.next_rendezvous().world_size == 1


def test_address_of_another_host(job: Handlers) -> None:
    """A node that cannot reach itself says so soon, instead of trying for ever."""
    params = RendezvousParameters("rallypoint", job.endpoint, "k", 1, 1, "nowhere.invalid")
    handler = get_rendezvous_handler(params)
    with pytest.raises(api.RendezvousStateError, match=r"nowhere.invalid.*--local-addr"):
        Call(handler.next_rendezvous).result()
    handler.shutdown()


def test_timeout(job: Handlers) -> None:
    """The error says what was missing; the node does not stay."""
    handler = job.new("n0", join_timeout=0.5)
    with pytest.raises(api.RendezvousTimeoutError, match=r"2 are required|1 of 2 required nodes"):
        handler.next_rendezvous()
    with Client(job.endpoint) as client:
        assert not client.get_job("j").job.nodes


def test_unreachable() -> None:
    """The error names the endpoint and what to do."""
    params = RendezvousParameters("rallypoint", "127.0.0.1:1", "j", 1, 1, read_timeout=0.3)
    handler = create_handler(params)
    with pytest.raises(api.RendezvousConnectionError, match="check --rdzv-endpoint"):
        handler.next_rendezvous()
    assert isinstance(handler, Handler)
    assert not end_with(handler, api.RendezvousConnectionError())


def test_other_parameters(job: Handlers, pair: tuple[Handler, Handler]) -> None:
    """A node that disagrees about the job is refused."""
    with pytest.raises(api.RendezvousStateError, match="2:2 there and 2:3 here"):
        job.new("n2", nodes=(2, 3)).next_rendezvous()


def test_interrupt_in_a_wait(job: Handlers) -> None:
    """An exception that a signal raises gets out of the wait at once."""
    handler = job.new("n0")

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise InterruptedError("interrupted")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        began_s = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(InterruptedError):
            handler.next_rendezvous()
        assert time.monotonic() - began_s < 10
    finally:
        signal.signal(signal.SIGALRM, before)


def test_node_is_visible(job: Handlers) -> None:
    """The coordinator shows the node, its state, and why it waits."""
    first = job.new("n0")
    waiting = Call(first.next_rendezvous)
    with Client(job.endpoint) as client:
        # The job exists once its first node has come.
        assert _eventually(client, "n0") == node_pb2.NODE_STATE_READY
        text = client.get_job("j").job.waiting.text
        assert "1 of 2 required nodes are ready" in text
        job.form(job.new("n1"))
        waiting.result()
        for state in client.watch_job("j"):
            states = {node.state for node in state.job.nodes}
            if states == {node_pb2.NODE_STATE_STARTED}:
                break


def _eventually(client: Client, name: str) -> int:
    for answer in client.watch_jobs():
        if answer.jobs:
            break
    for state in client.watch_job("j"):
        for node in state.job.nodes:
            if node.name == name:
                return node.state
    raise AssertionError("the job ended")


def test_store_that_is_not_shared(job: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's variable the workers host the store, and its port is free for them."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    handler = job.new("n0", nodes=(1, 1))
    (info,) = job.form(handler)
    assert not handler.use_agent_store
    one = info.bootstrap_store_info
    assert one is not None
    served = dist.TCPStore(  # type: ignore[attr-defined]
        one.master_addr, one.master_port, is_master=True, wait_for_workers=False
    )
    assert connect(info).num_keys() == served.num_keys()


def test_old_torch_finds_the_back_end_by_its_logs_specs() -> None:
    """--logs-specs=rallypoint registers the back end, and changes nothing about the logs."""
    (door,) = metadata.entry_points(group="torchrun.logs_specs", name="rallypoint")

    assert door.load() is DefaultLogsSpecs
    assert rendezvous_handler_registry._registry[NAME] is create_handler
