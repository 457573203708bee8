"""Places in all shards at once, as clients get them: hexadecimal numbers with dots in between."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rallypoint.server.rpc.convert.checks import require
from rallypoint.wire.limits import NUMBER_MAX

_NUMBER = re.compile(r"[0-9a-f]{1,14}", re.ASCII)


def write_position(numbers: Sequence[int]) -> str:
    """Return a position; `numbers` has one for each shard."""
    return ".".join(f"{number:x}" for number in numbers)


def read_position(text: str, count: int, path: str) -> list[int]:
    """Return the number for each shard; zeros for an empty text.

    Args:
        text: what a client has sent.
        count: number of shards.
        path: of the field.

    Raises:
        InvalidMessage: when it is no position of this store.
    """
    if not text:
        return [0] * count
    parts = text.split(".")
    is_one = all(map(_NUMBER.fullmatch, parts))
    require(is_one and len(parts) == count, path, f"is no position in {count} shards")
    numbers = [int(part, 16) for part in parts]
    require(max(numbers) <= NUMBER_MAX, path, f"is no position in {count} shards")
    return numbers
