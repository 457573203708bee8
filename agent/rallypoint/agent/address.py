"""The address that workers elsewhere reach this node at, and ports for their stores.

No name is looked up backwards: a name that the resolver knows need not be one that peers know.
"""

from __future__ import annotations

import socket
from collections import deque

PORTS_KEPT = 64
"""Ports stay reserved this many rounds long, so that a late worker of an old round finds nobody."""
_PROBE_ADDRESSES = (
    (socket.AF_INET, "192.0.2.1"),  # TEST-NET-1 of RFC 5737: routed like any address, never used
    (socket.AF_INET6, "2001:db8::1"),  # the documentation prefix of RFC 3849
)


def find_local_address(coordinator_host: str) -> str:
    """Return the source address towards the coordinator; if that is loopback, the default route's.

    Connecting a datagram socket sends nothing: the kernel only looks up the route.
    """
    towards = _source_address(coordinator_host)
    if towards is not None and not _is_loopback(towards):
        return towards
    for family, probe in _PROBE_ADDRESSES:
        found = _source_address(probe, family)
        if found is not None and not _is_loopback(found):
            return found
    return towards or "127.0.0.1"


def _source_address(host: str, family: int = socket.AF_UNSPEC) -> str | None:
    try:
        candidates = socket.getaddrinfo(host, 9, family, socket.SOCK_DGRAM)
    except OSError:
        return None
    for candidate_family, kind, protocol, _, address in candidates:
        try:
            with socket.socket(candidate_family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


class PortReserver:
    """Reserves ports that nobody else can get by asking for any free one.

    Bound without SO_REUSEADDR the port is this process's alone; the option is set only afterwards,
    so that the store of rank 0, which sets it too, may still listen there while it stays reserved.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._kept: deque[socket.socket] = deque()

    def reserve(self) -> int:
        """Return a port that this reserver has not returned among its last PORTS_KEPT."""
        kept = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            kept.bind(("", 0))
        except OSError:
            kept.close()
            raise
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.append(kept)
        while len(self._kept) > PORTS_KEPT:
            self._kept.popleft().close()
        port: int = kept.getsockname()[1]
        return port

    def close(self) -> None:
        """Give all ports back."""
        while self._kept:
            self._kept.pop().close()
