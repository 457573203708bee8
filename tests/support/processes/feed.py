"""Output of other processes, in order, for a test that waits for it.

Threads add items as they arrive; the test waits for the ones that it wants, always with a limit. A
wait that ends without them fails the test and shows every item.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LIMIT_S = 120.0
"""The most that any wait takes: far beyond what is expected, so that a busy machine passes."""


class Feed(Generic[T]):
    """Items from other threads, never removed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._items: list[T] = []
        self._has_ended = False
        self._changed = threading.Condition()

    def put(self, item: T) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def end(self) -> None:
        """Note that no item follows, so that no wait is in vain."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def items(self) -> list[T]:
        with self._changed:
            return list(self._items)

    def wait(
        self, is_wanted: Callable[[T], bool], count: int = 1, limit_s: float = LIMIT_S
    ) -> list[T]:
        """Return the first `count` wanted items, also those that are there already."""
        end_s = time.monotonic() + limit_s
        with self._changed:
            while True:
                found = [item for item in self._items if is_wanted(item)]
                if len(found) >= count:
                    return found[:count]
                left_s = end_s - time.monotonic()
                if self._has_ended or left_s <= 0:
                    break
                self._changed.wait(left_s)
            came = "\n  ".join(str(item) for item in self._items)
        why = "it ended" if self._has_ended else f"waited {limit_s:g} s"
        raise AssertionError(f"{self._name}: {len(found)} of {count}, {why}; all:\n  {came}")
