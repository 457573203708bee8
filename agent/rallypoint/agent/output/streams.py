"""One stream of one worker on its way: to a file, to the console, or to both.

A stream that only goes to a file gets that file and costs nothing. Any other that the agent has to
see comes through a pipe, and a thread moves its bytes: to the file first, so that nothing is lost
there whatever becomes of the console.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import stat
import termios
import threading
import time
import tty
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from rallypoint.agent.output.console import Console
from rallypoint.agent.output.destinations import Route
from rallypoint.agent.output.lines import Lines, PlainLines, UniformLines, with_prefix
from rallypoint.agent.output.lines import select as select_lines
from rallypoint.wire.log import get_logger

log = get_logger()

TAIL_BYTES = 4_096
"""End of standard error that a failure report carries."""
READ_BYTES = 65_536
"""As much as a pipe holds."""
_WINSIZE_BYTES = 8
"""sizeof struct winsize: rows, columns, and two that nobody uses."""
UNFINISHED_MS = 50
"""How long the beginning of a line waits for its end, where half a line may be shown."""


class Stream(Protocol):
    """What the agent knows of one stream."""

    def tail(self) -> str:
        """Return the end of what the worker wrote, from the beginning of a line if possible."""

    def silent_ms(self) -> int:
        """Return how long ago the worker wrote something, in milliseconds."""

    def hurry(self) -> None:
        """Note that the worker has ended: what is still on its way is to be taken in at once."""

    def has_ended(self) -> bool:
        """Tell whether all is taken in."""

    async def wait_end(self, limit_s: float) -> None:
        """Return when every writer has closed the stream, or after `limit_s` seconds."""


class File:
    """A file that takes what it can: one that is full ends no worker."""

    def __init__(self, path: str) -> None:
        """Open it, to be appended to.

        Raises:
            OSError: that cannot be done.
        """
        self._path = path
        self._fd = open_file(path)

    def write(self, data: bytes) -> None:
        """Append `data`; the first failure is logged, and the last attempt."""
        if self._fd < 0:
            return
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            log.warning(
                "log_file_not_written",
                path=self._path,
                error=str(error),
                then="its worker goes on, unrecorded",
            )
            self.close()

    def close(self) -> None:
        """Close it; it may be closed already."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Shown:
    """The way of one stream to the console, and of its filtered lines to their file."""

    def __init__(self, console: Console, route: Route) -> None:
        """Begin at the beginning of a line.

        Raises:
            OSError: the filtered file cannot be opened.
        """
        self._console = console
        self._prefix = route.prefix
        self._needles = route.needles
        self._lines: Lines = PlainLines() if route.prefix is None else UniformLines()
        self._filtered = File(route.filtered) if route.filtered else None
        self._is_last = False

    @property
    def is_patient(self) -> bool:
        """True when nothing waits to be passed on."""
        return self._lines.is_patient

    def take(self, data: bytes) -> None:
        """Pass on what came."""
        self._pass_on(self._lines.feed(data))

    def take_rest(self) -> None:
        """Pass on what is kept."""
        self._pass_on(self._lines.take_rest())

    def close(self) -> None:
        """Close the filtered file."""
        if self._filtered:
            self._filtered.close()

    def hurry(self) -> None:
        """Wait less for the console from now on."""
        self._is_last = True
        self._console.nudge()

    def _pass_on(self, lines: bytes) -> None:
        if not lines:
            return
        prefix = self._prefix or b""
        if self._filtered:
            self._filtered.write(with_prefix(select_lines(lines, self._needles), prefix))
        self._console.write(with_prefix(lines, prefix), lambda: self._is_last)


class FileStream:
    """A stream that goes to a file by itself."""

    def __init__(self, path: str) -> None:
        """Look at `path` when asked."""
        self._path = Path(path)

    def tail(self) -> str:
        """Return the end of the file; of what is no file we can read nothing without waiting."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                facts = os.fstat(fd)
                if not stat.S_ISREG(facts.st_mode):
                    return ""
                file.seek(max(0, facts.st_size - 2 * TAIL_BYTES))
                return _end_of(file.read(2 * TAIL_BYTES))
        except OSError:
            return ""

    def silent_ms(self) -> int:
        """Return how long ago the file was changed."""
        try:
            changed_s = self._path.stat().st_mtime
        except OSError:
            return 0
        now_s = time.time()  # noqa: TID251  # compared with the time of a file
        return max(0, int((now_s - changed_s) * 1000))

    def hurry(self) -> None:
        """Do nothing: what was written is there."""

    def has_ended(self) -> bool:
        """Return true: what was written is there."""
        return True

    async def wait_end(self, limit_s: float) -> None:
        """Return at once."""


class Pump:
    """A stream whose bytes a thread moves; it keeps their end."""

    def __init__(self, source_fd: int, file: File | None, shown: Shown | None) -> None:
        """Begin to pump from `source_fd`, which is owned from here on, as `file` and `shown` are.

        Raises:
            OSError: no thread can be had; all three are the caller's then.
        """
        self._source_fd = source_fd
        self._file = file
        self._shown = shown
        self._tail = b""
        self._spoke_ns = time.monotonic_ns()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        try:
            threading.Thread(target=self._pump, name="output", daemon=True).start()
        except RuntimeError as error:  # as many as the machine or a cgroup allows run already
            raise OSError(errno.EAGAIN, str(error)) from error

    def has_ended(self) -> bool:
        """Tell whether all is taken in."""
        return self._ended.is_set()

    async def wait_end(self, limit_s: float) -> None:
        """Return when every writer has closed the stream, or after `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                await self._ended.wait()
        except TimeoutError:
            pass  # a descendant of the worker holds the stream open: what has come has come

    def tail(self) -> str:
        """Return the end of what the worker wrote, from the beginning of a line if possible."""
        return _end_of(self._tail)

    def silent_ms(self) -> int:
        """Return how long ago the worker wrote something, in milliseconds."""
        return (time.monotonic_ns() - self._spoke_ns) // 1_000_000

    def hurry(self) -> None:
        """Take in at once what is still on its way."""
        if self._shown:
            self._shown.hurry()

    def _pump(self) -> None:
        try:
            while data := self._read():
                self._take(data)
            if self._shown:
                self._shown.take_rest()
        finally:
            os.close(self._source_fd)
            if self._file:
                self._file.close()
            if self._shown:
                self._shown.close()
            try:
                self._loop.call_soon_threadsafe(self._ended.set)
            except RuntimeError:
                pass  # the agent's loop has ended: nobody waits any more

    def _read(self) -> bytes:
        if self._shown and not self._shown.is_patient:
            wait = select.poll()
            wait.register(self._source_fd, select.POLLIN)
            if not wait.poll(UNFINISHED_MS):
                self._shown.take_rest()
        try:
            return os.read(self._source_fd, READ_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:  # how a terminal says that nobody has it open any more
                return b""
            raise

    def _take(self, data: bytes) -> None:
        self._tail = (self._tail + data[-2 * TAIL_BYTES :])[-2 * TAIL_BYTES :]
        self._spoke_ns = time.monotonic_ns()
        if self._file:
            self._file.write(data)
        if self._shown:
            self._shown.take(data)


def _end_of(data: bytes) -> str:
    if len(data) > TAIL_BYTES:
        data = data[-TAIL_BYTES:]
        _, newline, rest = data.partition(b"\n")
        data = rest if newline and rest else data
    return data.decode(errors="replace")


def open_file(path: str) -> int:
    """Open a file to be appended to, and return its descriptor.

    Raises:
        OSError: that cannot be done, or is a pipe that nobody reads, for which we do not wait.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(path, flags, 0o666)
    os.set_blocking(fd, True)
    return fd


def open_terminal(like_fd: int) -> tuple[int, int]:
    """Return where to read and where to write what is shown on the terminal `like_fd`.

    The writing end is a terminal of the same size, so whoever has it may use colours and move the
    cursor as on the real one. It changes no byte: that is for the real one to do, once.

    Raises:
        OSError: there are no terminals left, or `like_fd` was hung up.
    """
    with ExitStack() as opened:
        read_fd, write_fd = os.openpty()
        opened.callback(os.close, read_fd)
        opened.callback(os.close, write_fd)
        try:
            tty.setraw(write_fd)
            size = fcntl.ioctl(like_fd, termios.TIOCGWINSZ, bytes(_WINSIZE_BYTES))
            fcntl.ioctl(write_fd, termios.TIOCSWINSZ, size)
        except termios.error as error:
            raise OSError(*error.args) from error
        opened.pop_all()
    return read_fd, write_fd
