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
# A module of the user's that can pretend to be installed: sys.prefix is its own folder then.
MODULE = """
import os, sys
def install():
    sys.prefix = os.path.dirname(__file__)
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
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "print('main', flush=True)"],
                env=environ,
                pass_fds=(theirs.fileno(),),
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        self._decoder = Decoder()

    def send(self, **message: Any) -> None:
        self.socket.sendall(encode(message))

    def run(self) -> None:
        """Ask it to run, with its own output."""
        assert self.process.stdout is not None
        null = os.open(os.devnull, os.O_RDWR)
        frame = encode({"type": "run", "environ": dict(os.environ), "argv": [], "shown": {}})
        socket.send_fds(self.socket, [frame], [null, null, null])
        os.close(null)

    def receive(self) -> dict[str, Any]:
        while True:
            for message in self._decoder.feed(self.socket.recv(65536)):
                return message

    def prepare(self, *calls: str) -> None:
        assert self.receive()["type"] == "hello"
        self.send(type="prepare", modules=["noted"], calls=list(calls), path=None)
        assert self.receive()["type"] == "ready"

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
