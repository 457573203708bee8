"""`rallypoint.torch.Store` over real agents: a coordinator that is killed, a worker that fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from rallypoint.client import Client, Scope
from rallypoint.torch import Store, barrier, synchronize
from rallypoint.torch.store.failures import StoreError
from support.processes.feed import LIMIT_S
from support.processes.mailbox import Worker
from support.processes.world import NEW, World

LIMIT = timedelta(seconds=LIMIT_S)

pytestmark = pytest.mark.long  # torch, and a coordinator for each


def start(world: World, *flags: str) -> list[Worker]:
    """Start two nodes with a worker each, by rank."""
    for name in ("a", "b"):
        world.agent(name, *flags, nnodes="2")
    return world.mailbox.workers(2)


def store_of(worker: Worker, **fields: Any) -> Store:
    return Store.from_environment(worker.env, **fields)


def wait_arrived(world: World, count: int) -> None:
    """Wait until so many have arrived at the only barrier."""
    with Client(world.target) as client:
        while [one.arrived_count for one in client.list_barriers(world.job_id)] != [count]:
            pass  # each look is a call, which takes longer than an arrival


@pytest.mark.usefixtures("forgetful")
def test_calls_continue_at_a_new_coordinator(world: World) -> None:
    """Those that wait, and those that begin in the outage. The error says what was lost."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    workers = start(world)
    with (
        store_of(workers[0]) as first,
        store_of(workers[1]) as second,
        ThreadPoolExecutor() as pool,
    ):
        first.set("early", "1")
        key = pool.submit(first.get, "late")
        meeting = pool.submit(synchronize, first, b"zero", 0, 2, "meet", LIMIT_S)
        wait_arrived(world, 1)
        coordinator.kill()
        late = pool.submit(second.set, "late", "2")
        world.coordinator(port)
        late.result(LIMIT_S)

        assert b"2" == key.result(LIMIT_S)
        assert [b"zero", b"one"] == synchronize(second, b"one", 1, 2, "meet", LIMIT_S)
        assert [b"zero", b"one"] == meeting.result(LIMIT_S)
        assert 1 == second.add("n", 1)
        with pytest.raises(StoreError, match=r"keys: early; the coordinator has started again"):
            second.wait(["early"], timedelta(milliseconds=50))


def test_barrier_ends_at_once_when_a_rank_fails(world: World) -> None:
    """The error says which rank failed, and how. Its round is over for those that come later."""
    workers = start(world, "--max-restarts=1")
    with store_of(workers[0]) as first, ThreadPoolExecutor() as pool:
        with store_of(workers[0], scope=Scope.RUN) as run:
            run.set("step", "10")
        meeting = pool.submit(barrier, first, 2, "b", 600, 0)
        wait_arrived(world, 1)
        workers[1].tell("exit", "7")
        error = meeting.exception(LIMIT_S)
        assert isinstance(error, StoreError)
        assert "barrier on rank 0, for key prefix: b: " in str(error)
        assert "rank 1 on node b failed: exit code 7" in str(error)
        again, _ = world.mailbox.workers(2, round=2)
        with pytest.raises(StoreError, match=r"belongs to round 1 of job .* current round is 2"):
            first.set("k", "v")

    with store_of(again, scope=Scope.RUN) as run, store_of(again) as new:
        assert b"10" == run.get("step")
        assert 0 == new.num_keys()
