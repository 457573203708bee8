"""The address at which workers on other nodes reach this one.

There is no reverse lookup: peers may not know a name that this host's resolver knows.
"""

from __future__ import annotations

import contextlib
import socket

from rallypoint.agent.machine.interfaces import find_addresses
from rallypoint.base.addresses import is_loopback
from rallypoint.base.names import LOOPBACKS, Unresolved, find

_PROBE_ADDRESSES = (
    "192.0.2.1",  # TEST-NET-1 of RFC 5737: routed like any address, never used
    "2001:db8::1",  # the documentation prefix of RFC 3849
)


def find_local_address(coordinator_host: str) -> str:
    """Return the source address towards the coordinator.

    If it is loopback, as where the coordinator is on this host, return that of the default route,
    else that of the first interface that is up. Connecting a datagram socket sends nothing: the
    kernel only looks up the route.
    """
    towards = _source_address(coordinator_host)
    if towards is not None and not is_loopback(towards):
        return towards
    for probe in _PROBE_ADDRESSES:
        source = _source_address(probe)
        if source is not None and not is_loopback(source):
            return source
    return next(iter(find_addresses()), towards or find_loopback())


def find_loopback() -> str:
    """Return the loopback address of this host: IPv4 if there is one."""
    return next(filter(is_of_this_host, LOOPBACKS), LOOPBACKS[0])


def _source_address(host: str) -> str | None:
    try:
        addresses = find(host).addresses
    except Unresolved:
        return None
    for address in addresses:
        try:
            with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_of_this_host(address: str) -> bool:
    """Return whether a socket of this host can have the address. May wait for a look-up."""
    try:
        addresses = find(address).addresses
    except Unresolved:
        return False
    for one in addresses:
        with contextlib.suppress(OSError), socket.socket(_family(one), socket.SOCK_DGRAM) as probe:
            probe.bind((one, 0))
            return True
    return False
