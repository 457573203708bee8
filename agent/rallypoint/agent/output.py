"""What workers say: standard error passed on, with its end kept, and error files read.

A thread per stream moves the bytes, because a console may block for as long as it likes and must
not hold up the agent's heartbeats.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from rallypoint.agent.core.model import ErrorRecord

TAIL_BYTES = 4_096
"""End of standard error that a failure report carries."""
ERROR_FILE_BYTES_MAX = 1_048_576
MESSAGE_CHARS_MAX = 4_096
TRACEBACK_CHARS_MAX = 16_384
MESSAGE_LINES_MAX = 8
"""Lines of an uncaught error's message; of what says more after its traceback we do not know."""
_READ_BYTES = 65_536

_TRACEBACK = "Traceback (most recent call last):"
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)
_ELSEWHERE = re.compile(r"Exception in thread |Exception ignored in|Process \S+-\d+:$")
"""What announces the error of a thread, a destructor or a child."""


class StderrPump:
    """Passes one worker's standard error on to the agent's and keeps its end."""

    def __init__(self, source_fd: int, target_fd: int) -> None:
        """Begin to pump from `source_fd`, which is owned from here on, to `target_fd`."""
        self._source_fd = source_fd
        self._target_fd = target_fd
        self._tail = bytearray()
        self._spoke_ns = time.monotonic_ns()
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        threading.Thread(target=self._pump, name="stderr", daemon=True).start()

    async def wait_end(self, limit_s: float) -> None:
        """Return when every writer has closed the stream, or after `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                await self._ended.wait()
        except TimeoutError:
            pass  # a descendant of the worker holds the stream open: what has come has come

    def tail(self) -> str:
        """Return the end of what the worker wrote, from the beginning of a line if possible."""
        with self._lock:
            data = bytes(self._tail)
        if len(data) > TAIL_BYTES:
            data = data[-TAIL_BYTES:]
            _, newline, rest = data.partition(b"\n")
            data = rest if newline and rest else data
        return data.decode(errors="replace")

    def silent_ms(self) -> int:
        """Return how long ago the worker wrote something, in milliseconds."""
        with self._lock:
            return (time.monotonic_ns() - self._spoke_ns) // 1_000_000

    def _pump(self) -> None:
        try:
            while data := os.read(self._source_fd, _READ_BYTES):
                with self._lock:
                    self._tail += data
                    self._spoke_ns = time.monotonic_ns()
                    del self._tail[: -2 * TAIL_BYTES]
                self._pass_on(data)
        finally:
            os.close(self._source_fd)
            try:
                self._loop.call_soon_threadsafe(self._ended.set)
            except RuntimeError:
                pass  # the agent's loop has ended: nobody waits any more

    def _pass_on(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._target_fd, data) :]
        except OSError:
            pass  # the agent's own standard error is gone; the tail is still kept


def find_uncaught(tail: str) -> ErrorRecord | None:
    """Return the error with which the main thread has ended, if that is the last that it said.

    What the interpreter then still does, such as to close connections, can take seconds, in which
    the worker is as good as dead and may be signalled.
    """
    _, begin, rest = tail.rpartition(_TRACEBACK)
    before = tail[: len(tail) - len(begin) - len(rest)]
    lines = _RANK_PREFIX.sub("", rest).splitlines()
    last = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), None)
    if not begin or last is None or len(lines) - last > MESSAGE_LINES_MAX:
        return None
    if _ELSEWHERE.search(before.rstrip().rpartition("\n")[2]):
        return None
    stack = "\n".join((_TRACEBACK, *lines[1 : last + 1]))
    return ErrorRecord("\n".join(lines[last:])[:MESSAGE_CHARS_MAX], stack, None)


def read_error_file(path: Path, ended_s: float) -> ErrorRecord | None:
    """Return what a worker wrote down with `@record`, in any of its accepted forms, or None.

    Args:
        path: the worker's TORCHELASTIC_ERROR_FILE.
        ended_s: Unix time when the worker's end was seen, in seconds.
    """
    try:
        stat = path.stat()
        # The record's own time stamp counts whole seconds: too coarse to be compared with a stop.
        age_ms = max(0, int((ended_s - stat.st_mtime) * 1000))
        if stat.st_size > ERROR_FILE_BYTES_MAX:
            text = f"the error file is larger than {ERROR_FILE_BYTES_MAX} bytes"
            return ErrorRecord(text, "", age_ms)
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    message = content.get("message") if isinstance(content, Mapping) else None
    if message is None:
        return None
    if isinstance(message, str):
        return ErrorRecord(message[:MESSAGE_CHARS_MAX], "", age_ms)
    extra = message.get("extraInfo") if isinstance(message, Mapping) else None
    extra = extra if isinstance(extra, Mapping) else {}
    text = message.get("message", "") if isinstance(message, Mapping) else message
    traceback = extra.get("py_callstack")
    return ErrorRecord(
        message=str(text)[:MESSAGE_CHARS_MAX],
        traceback=traceback[-TRACEBACK_CHARS_MAX:] if isinstance(traceback, str) else "",
        before_exit_ms=age_ms,
    )
