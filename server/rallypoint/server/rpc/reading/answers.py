"""Answers that are large: calls that ask for the same one at once share it.

It takes a tenth of a second to build the answer about a job of 4,096 nodes. A call joins an answer
that shows a later moment than the call's own, so no caller gets old news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from msgspec import Struct, field


class _Upcoming(Struct):
    """An answer that is not built yet."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the call that builds it for all."""
    answer: bytes | None = None
    """Encoded."""


class Answers:
    """The answers that are about to be built."""

    def __init__(self) -> None:
        """Begin without calls."""
        self._upcoming: dict[Hashable, _Upcoming] = {}

    async def get(
        self, subject: Hashable, build: Callable[[Callable[[], None]], Awaitable[bytes]]
    ) -> bytes:
        """Return an answer that shows what is so after this call has begun.

        Args:
            subject: what the answer shows.
            build: builds it; it calls its argument at the moment that the answer shows.
        """
        upcoming = self._upcoming.setdefault(subject, _Upcoming())

        def close() -> None:
            if self._upcoming.get(subject) is upcoming:
                del self._upcoming[subject]

        async with upcoming.lock:
            if upcoming.answer is None:
                try:
                    upcoming.answer = await build(close)
                finally:
                    close()  # also when it was not built
            return upcoming.answer
