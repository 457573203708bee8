"""gRPC is given addresses, and certificates are verified for names."""

from __future__ import annotations

import pytest

from rallypoint.wire.resolved import Resolved, has_name, resolve, resolve_soon
from support.machines.resolver import LIMIT_S, Resolver


@pytest.mark.parametrize(
    ("addresses", "uri"),
    [
        (("10.0.0.1",), "ipv4:10.0.0.1:7"),
        (("10.0.0.1", "10.0.0.2"), "ipv4:10.0.0.1:7,10.0.0.2:7"),
        (("fd00::1", "fd00::2"), "ipv6:[fd00::1]:7,[fd00::2]:7"),
        (("::1", "127.0.0.1"), "ipv6:[::1]:7,[::ffff:127.0.0.1]:7"),
        (("fe80::1%eth0",), "ipv6:[fe80::1%25eth0]:7"),
    ],
)
async def test_grpc_gets_every_address_of_a_name(
    addresses: tuple[str, ...], uri: str, resolver: Resolver
) -> None:
    """In the resolver's order, in a list of one family."""
    resolver.known["head"] = addresses

    assert Resolved("head:7", addresses) == resolve("head:7", LIMIT_S)
    assert Resolved("head:7", addresses) == await resolve_soon("head:7", LIMIT_S)
    assert uri == resolve("head:7", LIMIT_S).uri


@pytest.mark.parametrize(
    "target",
    [
        "10.0.0.1:7",
        "[::1]:7",
        "[fe80::1%eth0]:7",
        "unix:/run/rallypoint.sock",
        "unix:rallypoint.sock",
        "unix-abstract:rallypoint",
        "dns:///head:7",
        "ipv4:10.0.0.1:7",
        "head",
    ],
)
async def test_what_is_no_name_with_a_port_is_grpcs_own(target: str, resolver: Resolver) -> None:
    """It can connect to more than names."""
    assert not has_name(target)
    assert target == resolve(target).uri == (await resolve_soon(target)).uri
    assert [] == resolver.asked
