"""The blocking client is made from the asyncio one."""

from __future__ import annotations

import pytest

from support.clients.write_sync import TEXTS, path_of, write_sync


@pytest.mark.parametrize("name", TEXTS)
def test_blocking_client_is_fresh(name: str) -> None:
    """A change to the asyncio client needs a `make client`."""
    committed = path_of(name).read_text(encoding="utf-8")

    assert write_sync(name) == committed, "run make client"
