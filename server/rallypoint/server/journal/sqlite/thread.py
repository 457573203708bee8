"""A thread that does one thing after the other, and never keeps the process from ending."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.000_5
"""How long a thread computes while another one waits to. An append needs the interpreter about ten
times, each for microseconds; by Python's default, 5 ms, a busy loop holds it up ten times over."""


class StoreThread:
    """The thread. It is a daemon: a disk that hangs must not hold up the end of the process."""

    def __init__(self, name: str) -> None:
        """Start it; all threads of the process take shorter turns from now on."""
        sys.setswitchinterval(min(TURN_S, sys.getswitchinterval()))
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, once everything before it is done.

        Raises:
            Exception: what `work` raises.
        """
        return await asyncio.wrap_future(self.submit(work))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Add `work`; once begun, it is finished even if its caller has gone."""
        future: Future[T] = Future()

        def do() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001  # its caller gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._queue.put(do)
        return future

    async def close(self, limit_s: float) -> bool:
        """End the thread when all its work is done; return whether it ended within the limit."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, limit_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (do := self._queue.get()) is not None:
            do()
