"""The address at which workers on other nodes reach this one.

There is no reverse lookup: peers may not know a name that this host's resolver knows.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Any

from rallypoint.base.addresses import is_loopback

_PROBE_ADDRESSES = (
    (socket.AF_INET, "192.0.2.1"),  # TEST-NET-1 of RFC 5737: routed like any address, never used
    (socket.AF_INET6, "2001:db8::1"),  # the documentation prefix of RFC 3849
)


def find_local_address(coordinator_host: str) -> str:
    """Return the source address towards the coordinator, or of the default route if it is loopback.

    Connecting a datagram socket sends nothing: the kernel only looks up the route.
    """
    towards = _source_address(coordinator_host)
    if towards is not None and not is_loopback(towards):
        return towards
    for family, probe in _PROBE_ADDRESSES:
        source = _source_address(probe, family)
        if source is not None and not is_loopback(source):
            return source
    return towards or "127.0.0.1"


def _source_address(host: str, family: int = socket.AF_UNSPEC) -> str | None:
    try:
        candidates = _look_up(host, 9, family)
    except (OSError, UnicodeError):  # UnicodeError: the text cannot be a name
        return None
    for candidate_family, kind, protocol, _, address in candidates:
        try:
            with socket.socket(candidate_family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def _look_up(host: str, port: int, family: int = socket.AF_UNSPEC) -> Sequence[tuple[Any, ...]]:
    # Text would load the codec for international names, which a launch seldom needs.
    name = host.encode() if host.isascii() else host
    return socket.getaddrinfo(name, port, family, socket.SOCK_DGRAM)


def is_of_this_host(address: str) -> bool:
    """Return whether a socket of this host can have the address. May block on a name lookup."""
    try:
        candidates = _look_up(address, 0)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, candidate in candidates:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(candidate)
            return True
    return False
