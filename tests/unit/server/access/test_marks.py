"""The mark of a forwarded call, which any client can send."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rallypoint.server.access.marks import SHARD_KEY, marked_shard
from rallypoint.server.contract.calls import Context


class FakeContext:
    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("15", 15), ("1" * 10, -1), ("1" * 5_000, -1), ("-1", -1), ("", -1), ("²", -1)],
)
def test_number_of_a_shard(text: str, expected: int) -> None:
    """What is none is the number of no shard, however long it is."""
    assert expected == marked_shard(cast("Context", FakeContext((SHARD_KEY, text))))


def test_call_of_a_client() -> None:
    """It has no mark."""
    assert marked_shard(cast("Context", FakeContext())) is None
