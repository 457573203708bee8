"""One stream of one worker: to a file, to the console, or to both.

For a stream that goes only to a file, the worker writes to the file itself. Any other stream goes
through a pipe, and a thread copies its bytes: to the file first, so that the file is complete even
if the console blocks.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import stat
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

from rallypoint.agent.output.destinations import Route
from rallypoint.agent.output.lines import Lines, PlainLines, UniformLines, with_prefix
from rallypoint.agent.output.lines import select as select_lines
from rallypoint.base.console import Console
from rallypoint.base.log import get_logger

log = get_logger()

TAIL_BYTES = 4_096
"""The end of standard error in a failure report."""
READ_BYTES = 65_536
"""The capacity of a pipe."""
_WINSIZE_BYTES = 8
"""sizeof struct winsize: rows, columns, and two unused numbers."""
UNFINISHED_MS = 50
"""How long an unfinished line waits for its end before the console shows it."""
LOOK_S = 0.005
"""Pause between two looks whether everything was read."""


class Stream(Protocol):
    """The agent's view of one stream."""

    is_file: bool
    """`tail` and `silent_ms` ask a file system, which may block."""

    def tail(self) -> str:
        """Return the end of the stream, from the beginning of a line if possible."""

    def silent_ms(self) -> int:
        """Return the milliseconds since the worker last wrote."""

    def hurry(self) -> None:
        """Note that the worker has ended: do not wait for the console any more."""

    def has_ended(self) -> bool:
        """Return whether the stream was read to its end."""

    async def wait_end(self, limit_s: float) -> None:
        """Wait until every writer has closed the stream, for at most `limit_s` seconds."""

    async def catch_up(self, limit_s: float) -> None:
        """Wait until `tail` knows what was written so far, for at most `limit_s` seconds."""


class File:
    """A file for output. If it cannot be written, the worker continues without it."""

    def __init__(self, path: str) -> None:
        """Open the file for appending.

        Raises:
            OSError: it cannot be opened.
        """
        self._path = path
        self._fd = open_file(path)

    def write(self, data: bytes) -> None:
        """Append `data`. The first failure is logged, and closes the file."""
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
                then="its worker keeps running; this file gets no more output",
            )
            self.close()

    def close(self) -> None:
        """Close the file; it may be closed already."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Shown:
    """Passes one stream to the console, and its filtered lines to their file."""

    def __init__(self, console: Console, route: Route) -> None:
        """Start at the beginning of a line.

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
        """True when no unfinished line has to be shown soon."""
        return self._lines.is_patient

    def write(self, data: bytes) -> None:
        """Pass on the next bytes."""
        self._pass_on(self._lines.feed(data))

    def flush(self) -> None:
        """Pass on an unfinished line."""
        self._pass_on(self._lines.flush())

    def close(self) -> None:
        """Close the filtered file."""
        if self._filtered:
            self._filtered.close()

    def hurry(self) -> None:
        """Do not wait for the console any more."""
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
    """A stream that the worker writes to a file itself."""

    is_file = True

    def __init__(self, path: str) -> None:
        """Take the path of the file."""
        self._path = Path(path)

    def tail(self) -> str:
        """Return the end of the file; empty if it is not a regular file, which could block."""
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
        """Return the milliseconds since the file last changed."""
        try:
            changed_s = self._path.stat().st_mtime
        except OSError:
            return 0
        now_s = time.time()  # noqa: TID251  # compared with the time of a file
        return max(0, int((now_s - changed_s) * 1000))

    def hurry(self) -> None:
        """Do nothing: the file is complete."""

    def has_ended(self) -> bool:
        """Return true: the file is complete."""
        return True

    async def wait_end(self, limit_s: float) -> None:
        """Return at once."""

    async def catch_up(self, limit_s: float) -> None:
        """Return at once."""


class Pump:
    """A stream whose bytes a thread copies; keeps the end of it."""

    is_file = False

    def __init__(
        self,
        source_fd: int,
        file: File | None,
        shown: Shown | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Start to copy from `source_fd`. The pump owns the first three arguments from here on.

        Raises:
            OSError: no thread can be started; the caller keeps all three.
        """
        self._source_fd = source_fd
        self._file = file
        self._shown = shown
        self._tail = b""
        self._is_reading = False
        """Whether the thread holds bytes that are not in the tail yet."""
        self._closing = threading.Lock()
        self._is_closed = False
        self._written_ns = time.monotonic_ns()
        self._loop = loop
        self._ended = asyncio.Event()
        try:
            threading.Thread(target=self._pump, name="output", daemon=True).start()
        except RuntimeError as error:  # a limit of the machine or a cgroup is reached
            raise OSError(errno.EAGAIN, str(error)) from error

    def has_ended(self) -> bool:
        """Return whether the stream was read to its end."""
        return self._ended.is_set()

    async def wait_end(self, limit_s: float) -> None:
        """Wait until every writer has closed the stream, for at most `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                await self._ended.wait()
        except TimeoutError:
            pass  # a descendant of the worker keeps the stream open

    async def catch_up(self, limit_s: float) -> None:
        """Wait until `tail` knows what was written so far, for at most `limit_s` seconds.

        On a busy machine the thread may run late. Another writer may delay this, up to the limit.
        """
        end_s = time.monotonic() + limit_s
        while self._is_behind() and time.monotonic() < end_s:  # noqa: ASYNC110  # see `_keep`
            await asyncio.sleep(LOOK_S)

    def _is_behind(self) -> bool:
        with self._closing:
            if self._is_closed:
                return False
            unread = fcntl.ioctl(self._source_fd, termios.FIONREAD, bytes(4))
        # In this order: the thread says that it is reading before it reads.
        return int.from_bytes(unread, sys.byteorder) > 0 or self._is_reading

    def tail(self) -> str:
        """Return the end of the stream, from the beginning of a line if possible."""
        return _end_of(self._tail)

    def silent_ms(self) -> int:
        """Return the milliseconds since the worker last wrote."""
        return (time.monotonic_ns() - self._written_ns) // 1_000_000

    def hurry(self) -> None:
        """Do not wait for the console any more."""
        if self._shown:
            self._shown.hurry()

    def _pump(self) -> None:
        try:
            while data := self._read():
                self._keep(data)
                self._copy(data)
            self._is_reading = False
            if self._shown:
                self._shown.flush()
        except Exception as error:  # noqa: BLE001  # the thread's root: no one else hears of it
            self._call_soon(partial(_raise, error))  # ends the agent: the worker cannot write
        finally:
            with self._closing:
                self._is_closed = True
                os.close(self._source_fd)
            if self._file:
                self._file.close()
            if self._shown:
                self._shown.close()
            self._call_soon(self._ended.set)

    def _call_soon(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            pass  # the agent's loop has ended, and every wait with it

    def _read(self) -> bytes:
        wait = select.poll()
        wait.register(self._source_fd, select.POLLIN)
        if self._shown and not self._shown.is_patient and not wait.poll(UNFINISHED_MS):
            self._shown.flush()
        wait.poll()
        self._is_reading = True
        try:
            return os.read(self._source_fd, READ_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:  # how a terminal reports that its last writer is gone
                return b""
            raise

    def _keep(self, data: bytes) -> None:
        # No event: waking the loop for every read would cost more than the few looks after an exit.
        self._tail = (self._tail + data[-2 * TAIL_BYTES :])[-2 * TAIL_BYTES :]
        self._written_ns = time.monotonic_ns()
        self._is_reading = False

    def _copy(self, data: bytes) -> None:
        if self._file:
            self._file.write(data)
        if self._shown:
            self._shown.write(data)


def _raise(error: Exception) -> None:
    raise error


def _end_of(data: bytes) -> str:
    if len(data) > TAIL_BYTES:
        data = data[-TAIL_BYTES:]
        _, newline, rest = data.partition(b"\n")
        data = rest if newline and rest else data
    return data.decode(errors="replace")


def open_file(path: str) -> int:
    """Open a file for appending, and return its descriptor.

    Raises:
        OSError: it cannot be opened, is a pipe without a reader, or no system has such a path.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o666)
    except ValueError as error:  # a plug-in's path has a zero byte, or half a surrogate pair
        raise OSError(errno.EINVAL, str(error)) from error
    os.set_blocking(fd, True)
    return fd


def open_terminal(like_fd: int) -> tuple[int, int]:
    """Return two ends of a pseudo-terminal, to read and to write, like the terminal `like_fd`.

    The end to write has the same size, so a worker may use colours and move the cursor as on the
    real one. It is in raw mode: only the real terminal translates bytes.

    Raises:
        OSError: no terminal is left, or `like_fd` was hung up.
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
