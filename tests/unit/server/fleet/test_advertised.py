"""What a coordinator notices about the address that it advertises."""

from __future__ import annotations

import asyncio

import structlog

from rallypoint.server.etcd.view import Member
from rallypoint.server.fleet.advertised import Advertised
from support.etcd.cluster import pick_ports

HERE, OTHER = Member("head:1"), Member("head:2")


def test_two_coordinators_with_one_address() -> None:
    """A predecessor that was killed has gone by the next look; a second coordinator has not."""
    address = Advertised("head:1")

    assert address.compare({"old": HERE, "mine": HERE, "third": OTHER}) == ""
    assert address.compare({"mine": HERE, "third": OTHER}) == ""
    assert address.compare({"mine": HERE, "second": HERE}) == ""
    assert address.compare({"mine": HERE, "second": HERE}).startswith(
        "2 coordinators advertise head:1"
    )


async def test_address_at_which_nothing_listens() -> None:
    """It is logged once for a while, and again when the address has become right."""
    (port,) = pick_ports(1)
    address = Advertised(f"127.0.0.1:{port}")
    with structlog.testing.capture_logs() as lines:
        await address.look({})
        await address.look({})
        assert f"127.0.0.1:{port}, which it advertises (Connection refused)" in address.trouble
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port):
            await address.look({})
            await address.look({})

    assert address.trouble == ""
    assert ["advertised_address_wrong", "advertised_address_right"] == [
        line["event"] for line in lines
    ]
