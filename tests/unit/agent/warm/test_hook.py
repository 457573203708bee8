"""The end of the socket in a standby: what it does with each frame, and when it refuses to run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent.helper.frames import Decoder, encode
from rallypoint.agent.in_worker import STANDBY
from rallypoint.agent.warm.command import FD_ENV

LIMIT_S = 60.0
PROGRAM = ("-c", "print('main', flush=True)")
# A module of the user's that can pretend to be installed: sys.prefix is its own folder then.
MODULE = """
import os, resource, sys
def install():
    sys.prefix = os.path.dirname(__file__)
def edit():
    os.utime(__file__, (1, 1))
def fill(free=0):
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    opened = []
    try:
        while True:
            opened.append(os.open("/dev/null", 0))
    except OSError:
        for fd in opened[:free]:
            os.close(fd)
def almost_fill():
    fill(1)
def part_ways():
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
"""


class Hook:
    """An interpreter that waits, and the agent's end of its socket."""

    def __init__(self, folder: Path) -> None:
        self.module = folder / "noted.py"
        self.module.write_text(MODULE)
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(LIMIT_S)
        path = os.pathsep.join((STANDBY, str(folder)))
        environ = {**os.environ, "PYTHONPATH": path, FD_ENV: str(theirs.fileno())}
        self.printed = folder / "printed.txt"
        with theirs, self.printed.open("a+b") as output:
            self.process = subprocess.Popen(
                [sys.executable, *PROGRAM],
                env=environ,
                pass_fds=(theirs.fileno(),),
                stdout=output,
                start_new_session=True,
            )
        self._decoder = Decoder()

    def send(self, **message: Any) -> None:
        self.socket.sendall(encode(message))

    def run(self, part: int | None = None) -> None:
        """Ask it to run with its own output, or send the first bytes of that."""
        frame = encode({"type": "run", "environ": dict(os.environ), "argv": [], "shown": {}})
        with open(os.devnull, "rb") as null, self.printed.open("ab") as output:
            fds = [null.fileno(), output.fileno(), output.fileno()]
            socket.send_fds(self.socket, [frame[:part]], fds)

    def receive(self) -> dict[str, Any]:
        while data := self.socket.recv(65536):
            for message in self._decoder.feed(data):
                return message
        raise AssertionError("it has closed its socket")

    def ask(self, *calls: str, program: tuple[str, ...] = PROGRAM) -> dict[str, Any]:
        """Let it import; return its answer."""
        assert self.receive()["type"] == "hello"
        words = list(program)
        self.send(type="prepare", modules=["noted"], calls=list(calls), path=None, program=words)
        return self.receive()

    def prepare(self, *calls: str) -> None:
        answer = self.ask(*calls)
        assert answer["type"] == "ready", answer

    def end(self) -> None:
        self.socket.close()
        with self.process:
            self.process.kill()


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Hook]:
    """An interpreter that was just started."""
    one = Hook(tmp_path)
    yield one
    one.end()


def test_standby_runs_after_looks_that_find_nothing(hook: Hook) -> None:
    """A look has no answer."""
    hook.prepare()
    hook.send(type="look")
    hook.send(type="look")
    hook.run()

    assert hook.receive() == {"type": "running"}
    assert hook.process.wait(LIMIT_S) == 0
    assert hook.printed.read_text() == "main\n"


def test_own_files_are_checked_at_the_start(hook: Hook) -> None:
    """Without any look before."""
    hook.prepare()
    os.utime(hook.module, (1, 1))
    hook.run()

    assert hook.receive() == {"type": "stale", "why": f"{hook.module} has changed"}
    assert hook.process.wait(LIMIT_S) == 0


def test_installed_files_are_checked_at_a_look(hook: Hook) -> None:
    """A failure of a worker makes the agent ask for one."""
    hook.prepare("noted:install")
    os.utime(hook.module, (1, 1))
    hook.send(type="look")

    assert hook.receive() == {"type": "stale", "why": f"{hook.module} has changed"}
    assert hook.process.wait(LIMIT_S) == 0


def test_installed_files_do_not_delay_the_start(hook: Hook) -> None:
    """They were looked at within a minute; there are too many for one turn on a processor."""
    hook.prepare("noted:install")
    os.utime(hook.module, (1, 1))
    hook.run()

    assert hook.receive() == {"type": "running"}


def test_change_during_the_imports_is_noticed(hook: Hook) -> None:
    """They may take minutes; a worker must not run what was read before the change."""
    hook.prepare("noted:edit")
    hook.run()

    assert hook.receive() == {"type": "stale", "why": f"{hook.module} has changed"}


def test_program_never_runs_after_an_error(hook: Hook) -> None:
    """After an exception, Python would run it: outside of any round, beside the one that runs."""
    answer = hook.ask("noted:fill")

    assert answer["type"] == "stale"
    assert "Too many open files" in answer["why"]
    assert hook.process.wait(LIMIT_S) == 1
    assert hook.printed.read_text() == ""


def test_process_that_returns_from_its_fork_is_no_standby(hook: Hook) -> None:
    """It would become the worker, and the agent would watch the other one."""
    answer = hook.ask("noted:part_ways")

    assert answer["type"] == "stale"
    assert "forks" in answer["why"]


def test_worker_without_its_output_does_not_run(hook: Hook) -> None:
    """The kernel drops the descriptors that a process has no room for."""
    hook.prepare("noted:almost_fill")
    hook.run()
    answer = hook.receive()

    assert answer["type"] == "stale"
    assert "no descriptor free" in answer["why"]
    assert hook.process.wait(LIMIT_S) == 1
    assert hook.printed.read_text() == ""


def test_program_of_a_wrapper_does_not_wait(hook: Hook) -> None:
    """A wrapper may ask Python for something before it starts the worker's program."""
    answer = hook.ask(program=("train.py", "--lr", "1"))

    assert answer["type"] == "stale"
    assert "PYTHON_EXEC" in answer["why"]
    assert hook.process.wait(LIMIT_S) == 0
    assert hook.printed.read_text() == ""


@pytest.mark.parametrize("part", [2, 4, 40, -1])
def test_end_of_the_agent_in_the_middle_of_a_request(hook: Hook, part: int) -> None:
    """A worker that the agent does not know of must not run."""
    hook.prepare()
    hook.run(part)
    hook.socket.close()

    assert hook.process.wait(LIMIT_S) == 0
    assert hook.printed.read_text() == ""
