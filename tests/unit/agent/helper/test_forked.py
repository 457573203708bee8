"""Helpers that fork workers without exec keep the promises of the small one. Real processes."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import pytest

from rallypoint.agent.helper.descendants import read_proc
from rallypoint.agent.helper.events import Clean, Spawned, SpawnFailed, SpawnRequest
from rallypoint.agent.helper.host import HelperIrreplaceable, WorkerHost
from support.processes.processes import Conversation, Lines, exited

WAIT = "import signal; signal.pause()"


def run_code(arguments: list[str]) -> NoReturn:
    exec(arguments[0], {})
    os._exit(0)


@pytest.fixture
async def talk() -> AsyncIterator[Conversation]:
    conversation = Conversation(WorkerHost.fork(run_code))
    yield conversation
    await conversation.host.close()


def ask(talk: Conversation, code: str, worker_id: int = 1, out: int = 2, **fields: Any) -> None:
    request = SpawnRequest(worker_id, (code,), dict(os.environ), "/", out, 2, is_forked=True)
    talk.host.spawn(request._replace(**fields))


async def start(talk: Conversation, code: str, worker_id: int = 1, out: int = 2) -> int:
    ask(talk, code, worker_id, out)
    event = await talk.next()
    assert isinstance(event, Spawned), event
    return event.pid


async def test_signals_reach_the_group_or_the_worker_alone(
    talk: Conversation, output: Lines
) -> None:
    """Each worker is its own group; what is sent at once waits until the worker runs."""
    ask(talk, WAIT)
    talk.host.signal(signal.SIGTERM)
    event = await talk.next()
    assert isinstance(event, Spawned)
    assert await talk.next() == exited(1, event.pid, None, signal.SIGTERM)

    code = f"import os\nif os.fork() == 0:\n  os.write(1, b'up\\n'); {WAIT}\n{WAIT}"
    pid = await start(talk, code, worker_id=2, out=output.write_fd)
    assert output.line() == "up"
    talk.host.signal(signal.SIGTERM, [2], alone=True)
    assert await talk.next() == exited(2, pid, None, signal.SIGTERM)
    os.killpg(pid, 0)  # its child lives
    talk.host.signal(signal.SIGKILL, [2])
    talk.host.sweep(1, 5_000)
    assert await talk.next() == Clean(1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"cwd": "/nowhere"}, errno.ENOENT), ({"cpus": (1_000,)}, errno.EINVAL)],
)
async def test_worker_that_cannot_start_is_reported(
    talk: Conversation, fields: dict[str, Any], code: int
) -> None:
    """A missing folder and CPUs that do not exist are refused before the function runs."""
    ask(talk, "pass", **fields)
    event = await talk.next()

    assert isinstance(event, SpawnFailed)
    assert (event.worker_id, event.errno) == (1, code)


async def test_code_that_leaves_run_does_not_become_a_second_helper(talk: Conversation) -> None:
    """An exception that `run` lets out ends the worker."""
    pid = await start(talk, "raise SystemExit(5)")

    assert await talk.next() == exited(1, pid, 1, None)


async def test_helper_without_functions_refuses_them() -> None:
    """The small helper can only execute programs."""
    talk = Conversation(WorkerHost.launch())
    ask(talk, "pass")
    event = await talk.next()
    await talk.host.close()

    assert isinstance(event, SpawnFailed)
    assert (event.errno, event.message) == (
        errno.ENOEXEC,
        "this helper cannot run functions",
    )


async def test_names_that_are_no_text_arrive(talk: Conversation, output: Lines) -> None:
    """An environment may hold bytes that are not UTF-8; the old one is gone."""
    environment = {"NAME": os.fsdecode(b"\xff\xc3\xa4")}
    code = "import os; os.write(1, repr(dict(os.environb)).encode() + b'\\n')"
    ask(talk, code, out=output.write_fd, env=environment)

    assert output.line() == repr({b"NAME": b"\xff\xc3\xa4"})


async def test_fork_cannot_be_replaced(talk: Conversation) -> None:
    """Other helpers can: the new one is of the same kind."""
    with pytest.raises(HelperIrreplaceable):
        talk.host.replacement()
    server = WorkerHost.launch_server((), os.environ)
    second = server.replacement()

    assert second.pid != server.pid
    for host in (server, second):
        async with asyncio.timeout(60):
            while not (line := read_proc(f"/proc/{host.pid}/cmdline")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # it does not run its own program yet
        assert "in_worker.forked" in line.decode()
        await host.close()
