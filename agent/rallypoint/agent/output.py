"""What workers say: standard error passed on, with its end kept.

A thread per stream moves the bytes, because a console may block for as long as it likes and must
not hold up the agent's heartbeats.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time

TAIL_BYTES = 4_096
"""End of standard error that a failure report carries."""
_READ_BYTES = 65_536


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
