"""The address that workers elsewhere reach this node at, and ports for their stores.

No name is looked up backwards: a name that the resolver knows need not be one that peers know.
"""

from __future__ import annotations

import contextlib
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
    if towards is not None and not is_loopback(towards):
        return towards
    for family, probe in _PROBE_ADDRESSES:
        found = _source_address(probe, family)
        if found is not None and not is_loopback(found):
            return found
    return towards or "127.0.0.1"


def _source_address(host: str, family: int = socket.AF_UNSPEC) -> str | None:
    try:
        candidates = socket.getaddrinfo(host, 9, family, socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # the second for what cannot be a name
        return None
    for candidate_family, kind, protocol, _, address in candidates:
        try:
            with socket.socket(candidate_family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def is_loopback(address: str) -> bool:
    """Return whether only this host is reached at the address."""
    return address.startswith("127.") or address in ("::1", "localhost")


def is_of_this_host(address: str) -> bool:
    """Return whether a socket here can have the address; to look up a name may take time."""
    try:
        candidates = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, found in candidates:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(found)
            return True
    return False


class PortReserver:
    """Reserves ports that nobody else can get by asking for any free one.

    Bound without SO_REUSEADDR the port is this process's alone; the option is set only afterwards,
    so that the store of rank 0, which sets it too, may still listen there while it stays reserved.
    A port that the operator has chosen is bound with the option: connections of an earlier run may
    still linger on it.
    """

    def __init__(self, chosen: int = 0) -> None:
        """Begin without any, or with the one that is to be returned every time.

        Args:
            chosen: 1 to 65535; 0: a new free one each time.

        Raises:
            OSError: if somebody else has the chosen one.
        """
        self._kept: deque[socket.socket] = deque()
        self._chosen = chosen
        if chosen:
            self._keep(chosen, is_shared=True)

    def reserve(self) -> int:
        """Return the chosen port, or one that was not returned among the last PORTS_KEPT."""
        if self._chosen:
            return self._chosen
        port = self._keep(0, is_shared=False)
        while len(self._kept) > PORTS_KEPT:
            self._kept.popleft().close()
        return port

    def _keep(self, wanted: int, *, is_shared: bool) -> int:
        kept = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(is_shared))
            kept.bind(("", wanted))
        except OSError:
            kept.close()
            raise
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.append(kept)
        port: int = kept.getsockname()[1]
        return port

    def close(self) -> None:
        """Give all ports back."""
        while self._kept:
            self._kept.pop().close()
