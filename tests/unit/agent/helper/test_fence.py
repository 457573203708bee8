"""The helper's fence, a dead man's switch: it kills everything at a time that the agent moves."""

import errno
import os
import signal
import socket
import time

import pytest

from rallypoint.agent.helper import main
from rallypoint.agent.helper.control import Control
from rallypoint.agent.helper.events import ORPHANS, Clean, Exited, HelperLost, SpawnFailed
from rallypoint.agent.helper.frames import Decoder
from rallypoint.agent.helper.host import become_subreaper
from support.processes.processes import PYTHON, STUBBORN_TREE, Conversation, Lines, Witness, exited


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def test_fence_kills_everything_when_its_instant_passes(
    talk: Conversation, output: Lines, witness: Witness
) -> None:
    """At the time of the fence, and not before, all workers die, and no other starts."""
    pid = await talk.start(*PYTHON, STUBBORN_TREE, out=output.write_fd)
    witness.watch(*output.pids(3).values())
    at_ms = now_ms() + 200
    talk.host.arm_fence(at_ms)

    assert await talk.next() == exited(1, pid, None, signal.SIGKILL)
    assert now_ms() >= at_ms
    assert witness.await_deaths() == []
    talk.ask(*PYTHON, "pass", worker_id=2)
    refused = await talk.next()
    assert isinstance(refused, SpawnFailed) and refused.errno == errno.EBUSY


async def test_fence_that_is_moved_in_time_kills_nobody(talk: Conversation) -> None:
    """Only the latest time of the fence counts, even if it is past already."""
    pid = await talk.start(*PYTHON, "import signal; signal.pause()")
    talk.host.arm_fence(now_ms() + 100)
    talk.host.arm_fence(now_ms() + 60_000)
    second = await talk.start(*PYTHON, "import time; time.sleep(0.3)", worker_id=2)
    assert await talk.next() == exited(2, second, 0, None)

    talk.host.arm_fence(now_ms() - 1)
    assert await talk.next() == exited(1, pid, None, signal.SIGKILL)
    talk.host.arm_fence(now_ms() + 60_000)
    third = await talk.start(*PYTHON, "pass", worker_id=3)
    assert await talk.next() == exited(3, third, 0, None)


async def test_fence_that_is_taken_back_kills_nobody(talk: Conversation) -> None:
    """Workers live on after its time, and others start."""
    pid = await talk.start(*PYTHON, "import signal; signal.pause()")
    at_ms = now_ms() + 100
    talk.host.arm_fence(at_ms)
    talk.host.arm_fence(None)
    second = await talk.start(*PYTHON, "import time; time.sleep(0.3)", worker_id=2)

    assert await talk.next() == exited(2, second, 0, None)
    assert now_ms() > at_ms
    talk.host.signal(signal.SIGKILL)
    assert await talk.next() == exited(1, pid, None, signal.SIGKILL)


async def test_fence_is_confirmed_once_everything_was_killed(talk: Conversation) -> None:
    """The agent learns that the helper has carried it out, also when nothing runs any more."""
    pid = await talk.start(*PYTHON, "import signal; signal.pause()")
    at_ms = now_ms() + 100
    talk.host.arm_fence(at_ms)
    assert await talk.next() == exited(1, pid, None, signal.SIGKILL)
    talk.ask(*PYTHON, "pass", worker_id=2)
    assert isinstance(await talk.next(), SpawnFailed)
    assert talk.host.fenced_ms == at_ms

    talk.host.arm_fence(at_ms + 1)
    for worker_id in (3, 4):  # the second answer follows the pass that confirms the fence
        talk.ask(*PYTHON, "pass", worker_id=worker_id)
        assert isinstance(await talk.next(), SpawnFailed)
    assert talk.host.fenced_ms == at_ms + 1


def test_fence_is_confirmed_before_many_processes_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent waits for a fraction of a second, and would kill a helper that is still at it."""
    ours, theirs = socket.socketpair()
    wake_fd, wake_write_fd = os.pipe()
    theirs.setblocking(False)
    heard = list[str]()

    def kill(*_: object) -> None:
        heard.extend(
            frame["type"] for frame in Decoder().feed(ours.recv(4_096, socket.MSG_DONTWAIT))
        )

    helper = main.Helper(Control(theirs), wake_fd)
    monkeypatch.setattr(main, "kill_descendants", kill)
    monkeypatch.setattr(main.Helper, "_reap", lambda _: None)
    helper._has_children, helper._fence_at_ms = True, now_ms() - 1
    helper._continue_sweeps()

    assert heard == ["fenced"]
    for end in (ours, theirs):
        end.close()
    for fd in (wake_fd, wake_write_fd):
        os.close(fd)


async def test_helper_that_stands_still_is_killed_with_its_workers(
    talk: Conversation, output: Lines, witness: Witness
) -> None:
    """It does not answer; its death ends everything below it, sessions and daemons among them."""
    become_subreaper()
    talk.host.ping()
    pid = await talk.start(*PYTHON, STUBBORN_TREE, out=output.write_fd)
    witness.watch(*output.pids(3).values())
    assert not talk.host.is_silent
    os.kill(talk.host.pid, signal.SIGSTOP)
    talk.host.ping()
    talk.host.kill()

    assert talk.host.is_silent
    assert await talk.next() == HelperLost(talk.host.pid)
    event = await talk.next()
    assert isinstance(event, Exited) and event.pid == pid
    assert await talk.next() == Clean(ORPHANS)
    assert witness.await_deaths() == []
