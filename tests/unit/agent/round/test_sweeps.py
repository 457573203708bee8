"""A sweep ends after the last exit: the core lets go of the round then."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.helper.events import (
    ORPHANS,
    Clean,
    Exited,
    HelperLost,
    HostEvent,
    Spawned,
    SpawnRequest,
)
from rallypoint.agent.helper.host import HelperIrreplaceable
from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.output.log_folder import LogFolder
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.round.supervisor import Supervisor
from rallypoint.base.console import Console, Consoles
from support.core.orders import run_order


class Host:
    """Stands in for the helper process; its worker holds standard error until it is let go."""

    pid = 1
    is_replaceable = takes_requests = True
    is_silent = False

    def __init__(self) -> None:
        self.workers: dict[int, int] = {}
        """The standard error of each worker, by its id."""

    def attach(self, on_event: Any) -> None:
        self.tell = on_event

    def spawn(self, request: SpawnRequest) -> None:
        self.workers[request.worker_id] = os.dup(request.stderr_fd)

    def signal(self, signum: int, *, alone: bool = False) -> None: ...

    def sweep(self, token: int, limit_ms: int) -> None: ...

    def ping(self) -> None: ...

    def replacement(self) -> Host:
        if not self.is_replaceable:
            raise HelperIrreplaceable(self.pid)
        return Host()


class Node:
    """A supervisor whose only worker runs, and what it has posted."""

    def __init__(self, folder: Path, tasks: asyncio.TaskGroup) -> None:
        self.host, self.posted = Host(), list[inputs.Input]()
        self.changed, self.began = asyncio.Event(), asyncio.Event()
        self.worker_id = 0
        nowhere = os.open(os.devnull, os.O_WRONLY)
        consoles = Consoles(Console(nowhere), Console(nowhere))
        outputs = WorkerOutputs(
            OutputSpec(), consoles, LogFolder(str(folder), "job"), node_name=str
        )
        self.supervisor = Supervisor(
            host=cast(Any, self.host),
            launch=Launch("train.py", ()),
            job_id="job",
            environment={},
            variables=tuple,
            post=self._post,
            tasks=tasks,
            outputs=outputs,
            began=lambda order: self.began.set(),
        )

    def _post(self, input: inputs.Input) -> None:
        self.posted.append(input)
        self.changed.set()

    async def begin(self) -> None:
        self.supervisor.attach()
        self.supervisor.start(run_order(local_world_size=1))
        async with asyncio.timeout(30):
            await self.began.wait()
        (self.worker_id,) = self.host.workers
        self.host.tell(Spawned(self.worker_id, 100))
        self.posted.clear()

    def tell(self, *events: HostEvent) -> None:
        """Let the agent read events of the helper that have come together."""
        for event in events:
            self.host.tell(event)

    async def kinds(self, count: int) -> list[type[inputs.Input]]:
        """Return what kinds of inputs were posted, once there are so many."""
        async with asyncio.timeout(30):
            while len(self.posted) < count:
                self.changed.clear()
                await self.changed.wait()
        return [type(one) for one in self.posted]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield


@pytest.mark.parametrize("is_lost", [False, True], ids=["clean", "helper lost"])
async def test_sweep_ends_after_the_last_exit_was_reported(tmp_path: Path, is_lost: bool) -> None:
    """A sweep that overtakes the report of an exit waits for it: else the culprit is lost."""
    async with asyncio.TaskGroup() as tasks:
        node = Node(tmp_path, tasks)
        await node.begin()
        node.supervisor.sweep(7)
        exited = Exited(node.worker_id, 100, 3, None, time.monotonic_ns())
        if is_lost:
            node.tell(HelperLost(1), exited, Clean(ORPHANS))
        else:
            node.tell(exited, Clean(7))

        assert await node.kinds(2) == [inputs.WorkerEnded, inputs.Swept]
        assert node.posted[1] == inputs.Swept(7)
    os.close(node.host.workers[node.worker_id])


async def test_fence_holds_for_a_helper_that_is_replaced_during_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers run below the new helper, although nothing was left below the one before it."""
    are_files_made, begin = threading.Event(), WorkerOutputs.begin

    def begin_late(outputs: WorkerOutputs, order: RunOrder) -> None:
        assert are_files_made.wait(30)
        begin(outputs, order)

    monkeypatch.setattr(WorkerOutputs, "begin", begin_late)
    async with asyncio.TaskGroup() as tasks:
        node = Node(tmp_path, tasks)
        node.supervisor.attach()
        node.supervisor.start(run_order(local_world_size=1))
        node.tell(HelperLost(1), Clean(ORPHANS))
        assert not node.supervisor._parts.helper.is_used
        are_files_made.set()
        async with asyncio.timeout(30):
            await node.began.wait()

        assert node.supervisor._parts.helper.is_used
    (stderr_fd,) = cast(Any, node.supervisor._parts.helper.host).workers.values()
    os.close(stderr_fd)
