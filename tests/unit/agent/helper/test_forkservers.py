"""The helper lets forkservers fork workers, and keeps all its promises for them. Real processes."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent.helper.descendants import list_descendants, read_stat
from rallypoint.agent.helper.events import Clean, Exited, Spawned, SpawnFailed, SpawnRequest
from rallypoint.agent.preload.command import forkserver_environment
from rallypoint.agent.preload.forkserver import Forkserver
from support.processes.processes import DEADLINE_S, STUBBORN_TREE, Conversation, Lines, Witness
from support.processes.processes import exited as ended

SERVER = -1
PIPES = False, False
HANDLES = """
import signal
signal.signal(signal.SIGTERM, lambda *_: exit(3))
print("up", flush=True)
signal.pause()
"""
WAIT = "import signal; print('up', flush=True); signal.pause()"


class Node:
    """A helper with a forkserver whose workers run one program."""

    def __init__(
        self, talk: Conversation, server: Forkserver, output: Lines, argv: tuple[str, ...]
    ):
        self.talk, self.server, self.output, self.argv = talk, server, output, argv
        self.pid = 0
        """Of the forkserver."""

    def ask(self, worker_id: int = 1, *argv: str, **fields: Any) -> None:
        """Ask for a worker with further arguments."""
        request = SpawnRequest(
            worker_id, argv, dict(os.environ), "/", self.output.write_fd, 2, via=SERVER
        )
        self.talk.host.spawn(request._replace(**fields))

    async def start(self, worker_id: int = 1) -> int:
        self.ask(worker_id)
        event = await self.talk.next()
        assert isinstance(event, Spawned), event
        return event.pid


async def serve(
    talk: Conversation, output: Lines, folder: Path, program: str, modules: tuple[str, ...] = ()
) -> Node:
    """Start a forkserver whose workers run a program."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    argv = (sys.executable, "-u", str(script))
    environment = forkserver_environment(dict(os.environ), {})
    server = Forkserver(SpawnRequest(SERVER, argv, environment, "/", 1, 2), PIPES, -1)
    await server.spawn(talk.host)
    node = Node(talk, server, output, argv)
    event = await talk.next()
    assert isinstance(event, Spawned), event
    node.pid = event.pid
    async with asyncio.timeout(DEADLINE_S):
        await server.receive()
        ready = await server.prepare(modules, (), str(folder), argv[2:])
        assert ready["refusal"] == "" and ready["failed"] == [], ready
        server.serve()
    return node


@pytest.fixture
async def node(
    request: pytest.FixtureRequest, talk: Conversation, output: Lines, tmp_path: Path
) -> AsyncIterator[Node]:
    made = await serve(talk, output, tmp_path, getattr(request, "param", WAIT))
    yield made
    made.server.close()


async def test_worker_is_a_child_of_the_helper(node: Node) -> None:
    """It leads its own session, and its exit is reported like that of any worker."""
    pid = await node.start()
    node.output.line()
    stat = read_stat(pid)
    assert stat is not None
    assert (stat.parent, stat.session, stat.group) == (node.talk.host.pid, pid, pid)
    node.talk.host.signal(signal.SIGTERM)

    assert await node.talk.next() == ended(1, pid, None, signal.SIGTERM)


async def test_sweep_spares_the_forkserver(
    talk: Conversation, output: Lines, tmp_path: Path, witness: Witness
) -> None:
    """What the worker has started dies with it; the next worker comes from the same forkserver."""
    node = await serve(talk, output, tmp_path, STUBBORN_TREE)
    for worker_id in (1, 2):
        pid = await node.start(worker_id)
        witness.watch(*output.pids(3).values())
        talk.host.sweep(worker_id, 5_000)
        assert await talk.next() == ended(worker_id, pid, None, signal.SIGKILL)
        assert await talk.next() == Clean(worker_id)
    assert witness.await_deaths() == []
    assert list_descendants(talk.host.pid) == [node.pid]
    node.server.close()


async def test_sweep_ends_a_forkserver_that_does_not_fork(node: Node) -> None:
    """What it would fork later would outlive the sweep."""
    os.kill(node.pid, signal.SIGSTOP)
    node.ask()
    node.talk.host.sweep(1, 30_000)
    events = [await node.talk.next() for _ in range(3)]

    (failed,) = (event for event in events if isinstance(event, SpawnFailed))
    assert (failed.worker_id, failed.errno) == (1, errno.EPIPE)
    assert ended(SERVER, node.pid, None, signal.SIGKILL) in events
    assert events[-1] == Clean(1)


async def test_fence_kills_workers_and_spares_the_forkserver(node: Node) -> None:
    """After the fence no worker is forked until it is moved."""
    pid = await node.start()
    node.output.line()
    node.talk.host.arm_fence(1)
    assert await node.talk.next() == ended(1, pid, None, signal.SIGKILL)
    node.ask(2)
    refused = await node.talk.next()
    assert isinstance(refused, SpawnFailed) and refused.errno == errno.EBUSY
    node.talk.host.arm_fence(None)

    assert await node.start(3)


@pytest.mark.parametrize("node", [HANDLES], indirect=True)
async def test_signals_before_the_fork_are_delivered(node: Node) -> None:
    """A worker that is asked for and stopped at once gets the signal when it runs."""
    os.kill(node.pid, signal.SIGSTOP)
    node.ask()
    node.talk.host.signal(signal.SIGTERM)
    os.kill(node.pid, signal.SIGCONT)
    events = [await node.talk.next() for _ in range(2)]

    assert isinstance(events[0], Spawned)
    assert isinstance(events[1], Exited) and (events[1].exit_code, events[1].signal) in (
        (3, None),
        (None, signal.SIGTERM),
    )


async def test_workers_survive_the_forkserver(node: Node) -> None:
    """Those that were not forked yet fail, each once; the others do not notice."""
    pid = await node.start()
    node.output.line()
    os.kill(node.pid, signal.SIGSTOP)
    node.ask(2)
    os.kill(node.pid, signal.SIGKILL)
    events = [await node.talk.next() for _ in range(2)]

    failed = [event for event in events if isinstance(event, SpawnFailed)]
    assert [event.worker_id for event in failed] == [2]
    # The helper may have learned of the end before it read what was asked.
    assert failed[0].errno in (errno.EPIPE, errno.ESRCH)
    assert ended(SERVER, node.pid, None, signal.SIGKILL) in events
    os.kill(pid, 0)
    node.ask(3)
    gone = await node.talk.next()
    assert isinstance(gone, SpawnFailed) and gone.errno == errno.ESRCH


async def test_workers_die_with_the_helper(node: Node, witness: Witness) -> None:
    """However the agent is doing, and so does the forkserver."""
    pid = await node.start()
    node.output.line()
    witness.watch(pid, node.pid)
    node.talk.host.kill()

    assert witness.await_deaths() == []


async def test_program_that_an_import_runs_is_spared(
    talk: Conversation, output: Lines, tmp_path: Path
) -> None:
    """A sweep may come while the forkserver still imports."""
    (tmp_path / "slow.py").write_text(
        "import subprocess\n"
        f"done = subprocess.run(['sh', '-c', 'cat < {tmp_path / 'go'}'])\n"
        "assert done.returncode == 0, done\n"
    )
    os.mkfifo(tmp_path / "go")
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve(talk, output, tmp_path, WAIT, ("slow",)))
        opened = await asyncio.to_thread(open, tmp_path / "go", "w")  # the program reads it now
        talk.host.sweep(1, 30_000)
        while await talk.next() != Clean(1):
            pass
        opened.close()
    node = serving.result()

    assert await node.start()
    node.server.close()


@pytest.mark.long
async def test_forkserver_that_is_killed_at_any_step_costs_only_forks(
    talk: Conversation, tmp_path: Path
) -> None:
    """Each worker is answered once, and the helper is clean afterwards."""
    for step in range(100):
        output = Lines()
        node = await serve(talk, output, tmp_path, WAIT)
        for worker_id in range(1, 5):
            node.ask(worker_id)
        await asyncio.sleep(step * 0.0004)  # a fork takes some milliseconds
        os.kill(node.pid, signal.SIGKILL)
        talk.host.sweep(1 + step, 30_000)
        answered, left, is_clean = set[int](), {SERVER}, False
        while left or not is_clean:
            match await talk.next():
                case Spawned(worker_id=worker_id):
                    assert worker_id not in answered and not is_clean
                    answered.add(worker_id)
                    left.add(worker_id)
                case SpawnFailed(worker_id=worker_id):
                    assert worker_id not in answered and not is_clean
                    answered.add(worker_id)
                case Exited(worker_id=worker_id):
                    assert worker_id == SERVER or not is_clean
                    left.remove(worker_id)
                case Clean():
                    is_clean = True
        assert answered == {1, 2, 3, 4}
        node.server.close()
        output.close()
    assert list_descendants(talk.host.pid) == []
