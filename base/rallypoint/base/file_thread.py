"""A thread for file operations, so that the event loop never waits for a file system.

A shared file system may stand still for a minute; an agent that waits for it in its event loop
sends no heartbeats, and is lost. Each thread runs its calls in order, one at a time. It starts with
a call and ends when there was none for a while, so that a program in which many agents have lived
keeps no threads. It is a daemon: a call that never returns does not keep the process from ending.
Calls that must not wait for each other, such as those of different file systems, need different
threads.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from rallypoint.base.log import get_logger

log = get_logger()

CALLS_MAX = 1_024
"""Calls that wait for the thread. A node has a few at a time; more follow only a stalled one."""
IDLE_S = 2.0
"""A thread without calls ends after this time; the next call starts another."""
STALLED_S = 5.0
"""A call that takes longer is logged."""

_T = TypeVar("_T")


class FileThread:
    """One thread, and the calls that wait for it."""

    def __init__(self, name: str) -> None:
        """Set the thread's name; it starts later."""
        self._name = name
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._is_busy = False
        self._has_thread = False

    async def run(
        self, doing: str, call: Callable[[], _T], undo: Callable[[_T], None] | None = None
    ) -> _T:
        """Return what `call` returns in the thread.

        Args:
            doing: what the call does, for the log.
            call: the file operations.
            undo: called in the thread with the result if nothing waits for it any more.

        Raises:
            OSError: too many calls wait, or no thread can be started.
            Exception: whatever `call` raises.
        """
        pending = self.begin(call)
        try:
            return await self.wait(doing, pending)
        except asyncio.CancelledError:
            if undo is not None:
                self.drop(pending, undo)
            raise

    def begin(self, call: Callable[[], _T]) -> Pending[_T]:
        """Let the thread call this; `wait` returns the result, or `Pending.result` without waiting.

        Raises:
            OSError: too many calls wait, or no thread can be started.
        """
        pending = Pending(asyncio.get_running_loop(), call)
        self.submit(pending.serve)
        return pending

    async def wait(self, doing: str, pending: Pending[_T]) -> _T:
        """Return what a call returns that has begun; see `run`.

        Raises:
            Exception: whatever the call raises.
        """
        stalled = asyncio.get_running_loop().call_later(STALLED_S, _log_stalled, doing)
        try:
            return await pending.future
        finally:
            stalled.cancel()

    def drop(self, pending: Pending[_T], undo: Callable[[_T], None]) -> None:
        """Let the thread leave out a call that has not begun, and undo one that was made."""
        pending.future.cancel()
        # In the same thread, so the call has returned by then, if it was made.
        with suppress(OSError):  # too many calls wait: the thread stands still
            self.submit(partial(pending.undo, undo))

    def submit(self, call: Callable[[], None]) -> None:
        """Let the thread call this; do not wait.

        Raises:
            OSError: too many calls wait, or no thread can be started.
        """
        with self._changed:
            if len(self._calls) >= CALLS_MAX:
                raise OSError(errno.EAGAIN, f"{CALLS_MAX} file operations wait for the first one")
            if not self._has_thread:
                self._start()
            self._calls.append(call)
            self._changed.notify_all()

    def flush(self, limit_s: float) -> bool:
        """Wait until all calls have returned, for at most `limit_s`; return whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._calls or self._is_busy), limit_s)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        except RuntimeError as error:  # a limit of the machine or a cgroup is reached
            raise OSError(errno.EAGAIN, str(error)) from error
        self._has_thread = True

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._calls, IDLE_S):
                    self._has_thread = False
                    return
                call = self._calls.popleft()
                self._is_busy = True
            try:
                call()
            except Exception as error:  # the thread's root: the next calls must run
                log.error("file_operation_failed", error=str(error), exc_info=error)


class Pending(Generic[_T]):
    """A call of a thread whose result the event loop wants."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], _T]) -> None:
        """Take the loop, and a call that the thread makes by `serve`."""
        self.future: asyncio.Future[_T] = loop.create_future()
        self._loop = loop
        self._call = call
        self._results: list[_T] = []
        """Empty until the call has returned."""
        self._error: Exception | None = None
        self._returned = threading.Event()

    def has_returned(self, patience_s: float) -> bool:
        """Return whether the call returns or raises within so many seconds; blocks until then."""
        return self._returned.wait(patience_s)

    def result(self) -> _T:
        """Return what the call has returned.

        Raises:
            Exception: whatever the call has raised.
        """
        if self._error is not None:
            raise self._error
        return self._results[0]

    def serve(self) -> None:
        """Make the call, unless nothing waits for it any more."""
        if self.future.cancelled():
            return
        try:
            self._results.append(self._call())
        except Exception as error:  # noqa: BLE001  # the caller gets it, in its own thread
            self._error = error
        self._returned.set()
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:
            pass  # the loop has ended, and every wait with it

    def _finish(self) -> None:
        if self.future.done():
            return
        if self._error is None:
            self.future.set_result(self._results[0])
        else:
            self.future.set_exception(self._error)
            self.future.exception()  # counts as retrieved: `result` may have raised it

    def undo(self, undo: Callable[[_T], None]) -> None:
        """Undo the call, if it was made and has not failed."""
        while self._results:
            undo(self._results.pop())


def _log_stalled(doing: str) -> None:
    then = "the agent waits for it without blocking"
    log.warning("file_system_stalled", doing=doing, for_s=STALLED_S, then=then)
