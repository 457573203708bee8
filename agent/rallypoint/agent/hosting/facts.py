"""What the resolver and the kernel say about this host and the host of an endpoint."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from rallypoint.agent.hosting.decision import HostFacts, Hosting, names_this_host
from rallypoint.base.addresses import is_loopback


def is_host(hosting: Hosting) -> bool:
    """Return whether this node hosts the coordinator. May block on a look-up of names."""
    if hosting.is_chosen is not None:
        return hosting.is_chosen
    return names_this_host(hosting.host, find_facts(hosting.host))


def leads_here(host: str) -> bool:
    """Return whether connections to a host certainly end on this one. May block."""
    return is_loopback(host) or bool(find_facts(host).own)


def find_facts(host: str) -> HostFacts:
    """Look up what is known about this host and another, or the same. May block."""
    name = socket.gethostname()
    addresses, full_names = _resolve(name)
    named, _ = _resolve(host)
    own = frozenset(filter(is_own, named))
    return HostFacts(name=name, full_names=full_names, addresses=addresses, named=named, own=own)


def _resolve(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the addresses and canonical names of a host; nothing when it is unknown."""
    try:
        found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP, flags=socket.AI_CANONNAME)
    except (OSError, UnicodeError):  # UnicodeError: the text cannot be a name
        return frozenset(), frozenset()
    return frozenset(str(one[4][0]) for one in found), _nonempty(one[3] for one in found)


def _nonempty(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(None, texts))


def is_own(address: str) -> bool:
    """Return whether an interface has this address: then the kernel also sends from it.

    Connecting a datagram socket sends nothing.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False
