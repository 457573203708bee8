"""Finds the bugs of the agent wherever they show, so that it can end in an orderly way.

asyncio prints an exception that a callback raises, and continues without the rest of the callback.
An agent that has lost an event waits for ever. So every exception of the agent's code reaches
`Agent.fail`: those of tasks through `GuardedTasks`, those of callbacks (events of the helper,
signals, timers) through the handler of the event loop, those of inputs through `Agent.post`.

Callbacks of libraries are different. gRPC's, for example, fail without harm in some versions; such
an exception is only logged.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import TracebackType
from typing import Any, TypeVar

from rallypoint.base.log import get_logger

log = get_logger()

TEXT_CHARS_MAX = 300
"""The line that describes an exception."""

_PACKAGE = __name__.rpartition(".")[0]
_T = TypeVar("_T")


def describe_error(error: BaseException) -> str:
    """Return the type and the text of an exception as one printable line."""
    text = " ".join(traceback.format_exception_only(error)[-1].split())
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text.encode(errors="replace").decode()[:TEXT_CHARS_MAX]


def is_ours(error: BaseException) -> bool:
    """Return whether an exception came through a function of the agent."""
    return _is_ours(error.__traceback__)


def _is_ours(trace: TracebackType | None) -> bool:
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if name == _PACKAGE or name.startswith(f"{_PACKAGE}."):
            return True
        trace = trace.tb_next
    return False


def handle_errors(loop: asyncio.AbstractEventLoop, fail: Callable[[BaseException], None]) -> None:
    """Call `fail` for each exception of the agent that nothing in the loop handles."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and is_ours(error):
            # A collection of garbage may report it in any thread.
            loop.call_soon_threadsafe(fail, error)
        elif isinstance(error, BlockingIOError):
            pass  # event loops of one process share gRPC's pipe: another one was faster
        else:
            what = str(context.get("message", ""))
            log.warning("library_failed", what=what, exc_info=error, then="the agent continues")

    loop.set_exception_handler(handle)


class GuardedTasks(asyncio.TaskGroup):
    """Tasks of which none cancels the others: the first exception of any ends the agent in order.

    A task that has failed counts as cancelled.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        """Set the function that learns of each exception."""
        super().__init__()
        self._fail = fail
        self._unfinished: set[asyncio.Task[Any]] = set()

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        """Start a task."""
        assert isinstance(coro, Coroutine)
        task = super().create_task(self._guard(coro), name=name, context=context)
        # Cancelled before its first step, the task has not begun to await it.
        task.add_done_callback(lambda _: coro.close())
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return task

    def cancel(self) -> None:
        """Cancel all tasks, some of which may wait for a file system that stands still."""
        for task in self._unfinished:
            task.cancel()

    async def _guard(self, coro: Coroutine[Any, Any, _T]) -> _T:
        try:
            return await coro
        except Exception as error:  # the root of every task: the failure ends the agent
            self._fail(error)
            raise asyncio.CancelledError from error
