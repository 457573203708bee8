"""Streams that were let in, and whose callers are checked again when the rules have changed.

A token that is taken out of the auth file must not count for as long as its holder keeps a stream
open. What is refused ends with the status that a new call would get.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from rallypoint.server.access.refusals import AccessRefused

BATCH = 256
"""Streams that are checked before others get their turn: a coordinator may have 32,768."""

Check = Callable[[], AccessRefused | None]
"""Returns why a stream may not stay, if so."""


class _Open(Struct, eq=False):
    """An open stream."""

    check: Check
    end: Callable[[AccessRefused], None]
    """Ends it."""
    is_of_worker: bool = False
    """Its caller is a worker, whose round may end."""
    refused: AccessRefused | None = None
    """Why it ends."""


class Streams:
    """The open streams."""

    def __init__(self) -> None:
        """Start without streams."""
        self._open: set[_Open] = set()

    @contextmanager
    def holding(self, check: Check, *, is_of_worker: bool = False) -> Iterator[None]:
        """Hold the stream of the current task while the context is open.

        Args:
            check: of the stream.
            is_of_worker: its caller is a worker, whose round may end.

        Raises:
            AccessRefused: when the stream may not stay.
        """
        task = asyncio.current_task()
        assert task is not None, "a call is served by a task"
        stream = _Open(check, lambda refused: _cancel(task), is_of_worker)
        self._open.add(stream)
        try:
            yield
        except asyncio.CancelledError:
            if stream.refused is None or task.uncancel():  # the client has gone, or both
                raise
            raise stream.refused from None
        finally:
            self._open.discard(stream)

    def hold(self, check: Check, end: Callable[[AccessRefused], None]) -> Callable[[], None]:
        """Hold a stream that shares its task with others; return what releases it.

        Args:
            check: of the stream.
            end: ends it when it may not stay.
        """
        stream = _Open(check, end)
        self._open.add(stream)
        return lambda: self._open.discard(stream)

    async def check(self, *, of_workers_alone: bool = False) -> None:
        """End the streams that may not stay.

        Args:
            of_workers_alone: no others can have lost their rights.

        Raises:
            ExceptionGroup: when some could not be checked; all others were.
        """
        errors = list[Exception]()
        streams = [one for one in self._open if one.is_of_worker or not of_workers_alone]
        for count, stream in enumerate(streams, 1):
            if stream in self._open and stream.refused is None:
                try:
                    stream.refused = stream.check()
                except Exception as error:  # noqa: BLE001  # raised below
                    errors.append(error)
                if stream.refused is not None:
                    stream.end(stream.refused)
            if not count % BATCH:
                await asyncio.sleep(0)
        if errors:
            raise ExceptionGroup("streams could not be checked", errors)


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
