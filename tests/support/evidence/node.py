"""A supervisor with real workers in this process, and a socket on which they say where they are."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rallypoint.agent.core.desired import Assignment, RoundHeader, RunOrder, without_round
from rallypoint.agent.core.inputs import Input
from rallypoint.agent.evidence.mode import Arming
from rallypoint.agent.evidence.processes import read_process
from rallypoint.agent.evidence.progress import Limits
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.machine.ports import PortReserver
from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.output.log_folder import LogFolder
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.preload.command import Preload
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.round.supervisor import Supervisor
from rallypoint.base.console import Console, Consoles
from rallypoint.v1 import evidence_pb2

LIMIT_S = 200.0
SOCKET = "TEST_SOCKET"
PROGRAM = Path(__file__).with_name("doing.py")


class Node:
    """A supervisor, and what its workers have written."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.lines: dict[int, str] = {}
        self._changed = asyncio.Event()

    async def heard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a line of a worker: its local rank, and what it found in its environment."""
        rank, _, text = (await reader.readline()).decode().strip().partition(" ")
        self.lines[int(rank)] = text
        self._changed.set()
        writer.close()

    async def await_workers(self, count: int) -> None:
        """Wait until so many have written, and do what they do for good."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.lines) < count:
                self._changed.clear()
                await self._changed.wait()
            for target in self.supervisor.round.targets():
                await self.await_state(target.pid, evidence_pb2.PROCESS_STATE_SLEEPING)

    async def await_state(self, pid: int, state: evidence_pb2.ProcessState.ValueType) -> None:
        """Wait until the main thread of a worker is in this state."""
        async with asyncio.timeout(LIMIT_S):
            while read_process(pid).state != state:  # noqa: ASYNC110 - the kernel sends no event
                await asyncio.sleep(0)

    def pid(self, local_rank: int) -> int:
        """Return the process of a worker."""
        return self.supervisor.round.targets()[local_rank].pid


@asynccontextmanager
async def running(
    folder: Path,
    deeds: Sequence[str],
    *,
    arming: Arming = Arming.FULL,
    preload: Preload | None = None,
    command: tuple[str, ...] = (),
    limits: Limits | None = None,
    post: Callable[[Input], None] = lambda input: None,
) -> AsyncIterator[Node]:
    """Run a worker for each deed; yield once all of them have begun it.

    Args:
        folder: of the test.
        deeds: what each does; see doing.py.
        arming: of the workers.
        preload: what they are forked from; None: they start cold.
        command: another program, for all.
        limits: how long they may make no progress; None: without a limit.
        post: learns what becomes of them.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    consoles = Consoles(Console(nowhere), Console(nowhere))
    outputs = WorkerOutputs(OutputSpec(), consoles, LogFolder(str(folder), "job"), node_name=str)
    count = len(deeds)
    script, args = str(PROGRAM), tuple([",".join(deeds)])
    if command:
        script, *rest = command
        args = tuple(rest)
    launch = Launch(script, args, no_python=bool(command), arming=arming)
    ports = PortReserver(0)
    header = RoundHeader(1, 1, count, 1, "127.0.0.1", ports.reserve(), 0, 1, 1)
    order = RunOrder(header, Assignment(0, 0, count, "default", 0, count), 0)
    socket = str(folder / "s")
    shape = (preload, launch.shape(str(PROGRAM.parent)), without_round(count, "default"))
    async with asyncio.TaskGroup() as tasks:
        supervisor = Supervisor(
            host=WorkerHost.launch(),
            launch=launch,
            job_id="job",
            environment={**os.environ, SOCKET: socket, "PYTHON_EXEC": sys.executable},
            variables=tuple,
            post=post,
            tasks=tasks,
            outputs=outputs,
            limits=limits,
            preload=None if shape[0] is None else (shape[0], *shape[1:]),
        )
        node = Node(supervisor)
        server = await asyncio.start_unix_server(node.heard, socket)
        try:
            await supervisor.begin()
            ports.close()
            supervisor.start(order)
            await node.await_workers(count)
            yield node
        finally:
            server.close()
            for part in supervisor.parts():
                await part()
            os.close(nowhere)
