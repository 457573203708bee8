"""The address that an agent gives to workers on other nodes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rallypoint.agent.machine import address as module
from rallypoint.agent.machine.address import find_local_address, find_loopback, is_of_this_host
from rallypoint.agent.machine.interfaces import find_addresses
from rallypoint.base.addresses import is_loopback
from rallypoint.base.names import LOOPBACKS


@pytest.mark.parametrize("coordinator", ["127.0.0.1", "no-such-host.invalid", "x" * 64])
def test_address_is_one_of_this_host(coordinator: str) -> None:
    """Whatever the coordinator's address, workers get one that can be bound on this host."""
    with socket.socket() as bound:
        bound.bind((find_local_address(coordinator), 0))

        assert bound.getsockname()[0] == find_local_address(coordinator)


def test_interface_that_is_up_comes_before_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the coordinator is here, and there is no default route."""
    monkeypatch.setattr(module, "_PROBE_ADDRESSES", ())
    monkeypatch.setattr(module, "find_addresses", lambda: ["10.0.0.7", "10.1.0.7"])

    assert find_local_address("127.0.1.1") == "10.0.0.7"
    monkeypatch.setattr(module, "find_addresses", list)
    assert is_loopback(find_local_address("127.0.1.1"))


def test_addresses_of_interfaces_are_of_this_host(tmp_path: Path) -> None:
    """None is loopback; those of IPv6 that only one link can reach are left out."""
    found = find_addresses()

    assert [one for one in found if not is_of_this_host(one) or is_loopback(one)] == []
    assert find_addresses(tmp_path / "nowhere") == [one for one in found if ":" not in one]


@pytest.mark.parametrize(
    ("missing", "address"), [((), "127.0.0.1"), (("127.0.0.1",), "::1"), (LOOPBACKS, "127.0.0.1")]
)
def test_loopback_is_whichever_there_is(
    missing: tuple[str, ...], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any, the error will be about the usual one."""
    monkeypatch.setattr(module, "is_of_this_host", lambda one: one not in missing)

    assert find_loopback() == address


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
