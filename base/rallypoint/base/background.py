"""Tasks that run beside a context, which owns them: it ends them, and hears when one ends too soon.

A task group would cancel the body of the context. These contexts are entered by one task and left
by another, and the owner decides how the program ends. So the end of a task is the exception of a
future, which the owner waits for beside everything else that may end the program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from rallypoint.base.log import get_logger

log = get_logger()

Look = Callable[[], Awaitable[None]]
"""Looks at something that may have changed since the last time."""


class TaskEnded(Exception):
    """A task that should run as long as its context has ended without an exception."""


class Background:
    """The tasks of one context."""

    def __init__(self, failed: asyncio.Future[None]) -> None:
        """Begin without tasks.

        Args:
            failed: done, with an exception, when one of the tasks has ended too soon; contexts may
                share it.
        """
        self._failed = failed
        self._tasks: list[asyncio.Task[None]] = []
        self._is_ending = False

    async def __aenter__(self) -> Background:
        """Own tasks until the context ends."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel the tasks, and wait until they have ended."""
        self.expect_ends()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine until the context ends."""
        task = asyncio.ensure_future(work)  # noqa: TID251  # `__aexit__` awaits it, `_note` hears of its end
        task.add_done_callback(self._note)
        self._tasks.append(task)
        return task

    def expect_ends(self) -> None:
        """Let tasks end by themselves from now on: the context is about to end."""
        self._is_ending = True

    def _note(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._failed.done() or (self._is_ending and error is None):
            return
        self._failed.set_exception(error or TaskEnded(f"{task.get_coro()} has ended"))
        self._failed.exception()  # asyncio would report one that its owner does not ask for


async def keep_looking(looks: Sequence[Look], pause_s: float) -> None:
    """Make all looks again and again, until cancelled.

    One that fails keeps no other one from being made, and is made again. The log has each reason
    once: a bug in a look must not end what the others see to.

    Args:
        looks: made one after the other.
        pause_s: between two times.
    """
    reasons = [""] * len(looks)
    while True:
        for at, look in enumerate(looks):
            reason = ""
            try:
                await look()
            except Exception as error:  # the root of the look; it is made again
                reason = repr(error)
                if reason != reasons[at]:
                    log.error("look_failed", exc_info=error)
            reasons[at] = reason
        await asyncio.sleep(pause_s)
