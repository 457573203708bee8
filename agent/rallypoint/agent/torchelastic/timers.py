"""The FIFO of `torch.distributed.elastic.timer`: its path, and the requests of clients.

A worker, or a process below it, sets a timer with one line and releases it with another:

    {"version": 1, "pid": 7, "scope_id": "step", "expiration_time": 1700000000.5, "signal": 9}

`expiration_time` is Unix time in seconds; a negative one releases the timer.

Source of the protocol: torch 2.13, `FileTimerClient`.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from rallypoint.agent.machine.fifo import FifoLines
from rallypoint.agent.torchelastic.variables import TIMERS_ENV

WORKER_ENV = "TORCHELASTIC_RUN_ID"
"""Set in every worker, by torchrun and by us."""
LINE_BYTES_MAX = select.PIPE_BUF
"""A client writes up to this much at once, so lines of different clients never mix."""
_READ_BYTES = 65_536
"""The capacity of a pipe. The limit of one read: a client that never stops must not block us."""


class TimerFileRefused(Exception):
    """The FIFO cannot be made where the environment asks for it."""

    def __init__(self, path: str, why: str) -> None:
        """Carry the path and the reason."""
        super().__init__(f"{TIMERS_ENV}={path}: {why}")
        self.path = path


class Request(Struct, frozen=True):
    """One line of a client."""

    pid: int
    scope: str
    expires_s: float
    """Unix time; negative: released. Never NaN."""
    signum: int
    """0 or less: do not signal."""


def timer_file(environment: Mapping[str, str], folder: Callable[[], Path]) -> str:
    """Return the absolute path of the FIFO of a watchdog that is on.

    Args:
        environment: the agent's own.
        folder: returns the agent's own folder, for when the environment names no path.

    Raises:
        TimerFileRefused: there is no path, and no folder can be made.
    """
    # An agent inside a worker inherits the FIFO of the launcher around it, which has a reader.
    given = "" if WORKER_ENV in environment else environment.get(TIMERS_ENV)
    try:
        return os.path.abspath(given or folder() / "timers")
    except OSError as error:
        raise TimerFileRefused("", error.strerror or str(error)) from error


def parse_request(line: bytes) -> Request | None:
    """Return the request in a line, or None without one."""
    try:
        match json.loads(line):
            case {
                "pid": int(pid),
                "scope_id": str(scope),
                "expiration_time": int() | float() as expires,
                "signal": int(signum),
            } if (
                pid > 1 and signum < signal.NSIG and not (expires_s := float(expires)) != expires_s
            ):
                return Request(pid, scope, expires_s, signum)
    except (ValueError, OverflowError, RecursionError):
        pass
    return None


class TimerFile:
    """The FIFO, open for reading; it exists as long as it is open."""

    def __init__(self, path: str) -> None:
        """Make the FIFO, and replace one without a reader.

        Raises:
            TimerFileRefused: the path is taken, or no FIFO can be made there.
        """
        try:
            self._fd = _open_fifo(path)
        except OSError as error:
            raise TimerFileRefused(path, error.strerror or str(error)) from error
        self.path = path
        self._identity = _identity(os.fstat(self._fd))
        self._lines = FifoLines(self._fd, line_bytes_max=LINE_BYTES_MAX, read_bytes=_READ_BYTES)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._fd

    def read(self) -> list[Request | None]:
        """Read what can be read without blocking.

        Returns:
            One item a line, in the order written; None for a line that holds no request.
        """
        lines = self._lines.read()
        return [None if line is None else parse_request(line) for line in lines]

    def close(self) -> None:
        """Close the FIFO, and remove it unless another file has taken its path."""
        os.close(self._fd)
        try:
            if _identity(os.lstat(self.path)) == self._identity:
                os.unlink(self.path)
        except OSError:
            pass  # removed already


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _open_fifo(path: str) -> int:
    """Make a FIFO and open both ends, so that no open blocks and no read sees the end.

    Raises: OSError, TimerFileRefused: the FIFO cannot be made.
    """
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            raise TimerFileRefused(path, "it exists and is no FIFO") from None
        if _has_reader(path):
            raise TimerFileRefused(path, "it is in use: give each agent a different one") from None
        os.unlink(path)
        os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _has_reader(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    return True
