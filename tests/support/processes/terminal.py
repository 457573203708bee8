"""A command in the foreground of a terminal: what a person types reaches it.

The kernel turns Ctrl-C into SIGINT for every process of the foreground group, which no `kill` does.
"""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from support.processes.feed import LIMIT_S

CTRL_C = b"\x03"
ROWS = 50
POLL_S = 0.05
# The first terminal that the leader of a new session opens becomes the session's own.
_PROGRAM = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(terminal, fd)
os.closerange(3, 1024)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Terminal:
    """A pseudo-terminal with one command in it."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, *, columns: int = 0
    ) -> None:
        """Start it; `columns`: width of the terminal, 0: unknown."""
        self._master_fd, slave_fd = pty.openpty()
        if columns:  # and no variable says otherwise: pytest-xdist sets COLUMNS
            termios.tcsetwinsize(slave_fd, (ROWS, columns))
            env = {name: env[name] for name in env if name not in ("COLUMNS", "LINES")}
        self._shown = bytearray()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, os.ttyname(slave_fd), *argv],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._slave_fd = slave_fd  # held, so that the terminal lives on between two who open it
        self._reader = threading.Thread(target=self._read, name="terminal")
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._slave_fd)
        self._reader.join(LIMIT_S)
        os.close(self._master_fd)

    def type(self, keys: bytes) -> None:
        os.write(self._master_fd, keys)

    def resize(self, columns: int) -> None:
        """Give the terminal another width."""
        termios.tcsetwinsize(self._slave_fd, (ROWS, columns))

    def wait(self) -> int:
        """Return the exit code, as a shell would show it for a signal: -n."""
        return self._process.wait(LIMIT_S)

    def wait_for(self, text: str, begin: int = 0) -> int:
        """Wait until it has shown a text after a position; return where."""
        ends_s = time.monotonic() + LIMIT_S
        while (at := self.shown().find(text, begin)) < 0:
            assert time.monotonic() < ends_s, self.shown()[-2000:]
            time.sleep(POLL_S)
        return at

    def shown(self) -> str:
        return self._shown.decode(errors="replace")

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: no process has the terminal open any more
            while data := os.read(self._master_fd, 65_536):
                self._shown += data
