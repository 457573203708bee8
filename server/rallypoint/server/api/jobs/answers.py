"""Answers that are large: calls that ask for the same one at once share it.

It takes a tenth of a second to build the answer about a job of 4,096 nodes. A call joins an answer
that shows a later moment than the call's own, so no caller gets old news. A large answer rests
before it is built again, so callers that ask without end leave most of the processor to agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from weakref import WeakValueDictionary

from msgspec import Struct

LARGE_BYTES = 128 * 1_024
"""An answer of fewer bytes is built in a few milliseconds, and never rests."""
BYTES_PER_S_MAX = 1_024 * 1_024
"""Bytes of large answers about one subject that are built per second. The answer about a job of
4,096 nodes is built about once a second, which takes a tenth of a core."""


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
        self._rested_s: dict[Hashable, float] = {}
        """When the large answer about a subject may be built again, in the loop's time."""

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
                    await self._rest(subject)
                    upcoming.answer = await build(close)
                    self._note_built(subject, len(upcoming.answer))
                except Exception as error:
                    upcoming.error = error
                    raise
                finally:
                    close()  # also when it was not built
            return upcoming.answer

    async def _rest(self, subject: Hashable) -> None:
        """Wait until the answer may be built again."""
        now_s = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, self._rested_s.get(subject, now_s) - now_s))

    def _note_built(self, subject: Hashable, size: int) -> None:
        """Note the size of an answer that was built now; forget it after its rest."""
        if size >= LARGE_BYTES:
            loop, rest_s = asyncio.get_running_loop(), size / BYTES_PER_S_MAX
            self._rested_s[subject] = loop.time() + rest_s
            loop.call_later(rest_s, self._rested_s.pop, subject, None)
