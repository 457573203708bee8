"""Cuts what a snapshot holds into parts.

A store can then write a large memory bit by bit, and lets others run in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

PART_BYTES = 131_072
"""Bytes after which the next part begins."""
ENTRY_BYTES = 256
"""What an entry takes besides what `size_of` says, about."""
EVENTS_PER_PART = 512
"""Events of a part; few have long texts."""
Entry = TypeVar("Entry")


def cut(entries: Iterable[Entry], size_of: Callable[[Entry], int]) -> Iterator[tuple[Entry, ...]]:
    """Yield the entries in parts of about PART_BYTES, in order; each has at least one.

    Args:
        entries: any number of them.
        size_of: returns the bytes of an entry's own content.
    """
    part: list[Entry] = []
    size = 0
    for entry in entries:
        part.append(entry)
        size += size_of(entry) + ENTRY_BYTES
        if size >= PART_BYTES:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)
