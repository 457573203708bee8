"""A rendezvous that one node closes, with a real coordinator."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rallypoint.elastic import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousParameters,
    get_rendezvous_handler,
)
from support.embedded.nodes import coordinator

LIMIT_S = 30.0


def new(address: str, name: str, **config: Any) -> RendezvousHandler:
    options = {"node_name": name, **config}
    return get_rendezvous_handler(
        RendezvousParameters("rallypoint", address, "j", 2, 2, "127.0.0.1", **options)
    )


def test_node_that_comes_while_a_closed_run_ends_finds_it_closed() -> None:
    """It does not wait for the end without a limit, and is not sent to start a coordinator."""
    with coordinator() as server, ThreadPoolExecutor() as pool:
        first, second = pair = new(server.address, "n0"), new(server.address, "n1")
        for joined in [pool.submit(one.next_rendezvous) for one in pair]:
            joined.result(LIMIT_S)
        first.set_closed()
        with pytest.raises(RendezvousClosedError):
            pool.submit(second.next_rendezvous).result(LIMIT_S)
        third = new(server.address, "n2", coordinator_timeout=3)
        with pytest.raises(RendezvousClosedError, match="run 1 of job j is still ending"):
            pool.submit(third.next_rendezvous).result(LIMIT_S)
        third.shutdown()
        for left in [pool.submit(one.shutdown) for one in pair]:
            left.result(LIMIT_S)
