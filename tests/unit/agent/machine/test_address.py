"""The address that an agent gives to workers on other nodes."""

from __future__ import annotations

import socket

import pytest

from rallypoint.agent.machine.address import find_local_address, is_of_this_host
from rallypoint.base.addresses import is_loopback


@pytest.mark.parametrize("coordinator", ["127.0.0.1", "no-such-host.invalid", "x" * 64])
def test_address_is_one_of_this_host(coordinator: str) -> None:
    """Whatever the coordinator's address, workers get one that can be bound on this host."""
    with socket.socket() as bound:
        bound.bind((find_local_address(coordinator), 0))

        assert bound.getsockname()[0] == find_local_address(coordinator)


@pytest.mark.parametrize(
    ("address", "here", "loopback"),
    [
        ("127.0.0.1", True, True),
        ("127.8.9.1", True, True),
        ("localhost", True, True),
        ("192.0.2.1", False, False),
        ("no-such-host.invalid", False, False),
        ("", False, False),
        ("x" * 64, False, False),
    ],
)
def test_address_of_this_host(address: str, here: bool, loopback: bool) -> None:
    """An address is of this host if it can be bound here, by number or by name."""
    assert (is_of_this_host(address), is_loopback(address)) == (here, loopback)
