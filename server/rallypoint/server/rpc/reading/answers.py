"""Answers that are large: calls that ask for the same one at once share it.

It takes a tenth of a second to build the answer about a job of 4,096 nodes. A call joins an answer
that shows a later moment than the call's own, so no caller gets old news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from weakref import WeakValueDictionary

from msgspec import Struct


class _Upcoming(Struct):
    """An answer that is not built yet."""

    answer: bytes | None = None
    """Encoded."""
    error: Exception | None = None
    """Why it cannot be built."""


class Answers:
    """The answers that are about to be built."""

    def __init__(self) -> None:
        """Begin without calls."""
        self._upcoming: dict[Hashable, _Upcoming] = {}
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        """Of each subject; held by the call that builds its answer for all."""

    async def get(
        self, subject: Hashable, build: Callable[[Callable[[], None]], Awaitable[bytes]]
    ) -> bytes:
        """Return an answer that shows what is so after this call has begun.

        Args:
            subject: what the answer shows.
            build: builds it; it calls its argument at the moment that the answer shows. Calls share
                its errors, too.
        """
        upcoming = self._upcoming.setdefault(subject, _Upcoming())

        def close() -> None:
            if self._upcoming.get(subject) is upcoming:
                del self._upcoming[subject]

        async with self._locks.setdefault(subject, asyncio.Lock()):
            if upcoming.error is not None:
                raise upcoming.error
            if upcoming.answer is None:
                try:
                    upcoming.answer = await build(close)
                except Exception as error:
                    upcoming.error = error
                    raise
                finally:
                    close()  # also when it was not built
            return upcoming.answer
