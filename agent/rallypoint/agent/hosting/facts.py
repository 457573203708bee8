"""What the resolver and the kernel say about this host and the host of an endpoint."""

from __future__ import annotations

import socket

from rallypoint.agent.hosting.decision import HostFacts, Hosting, names_this_host
from rallypoint.base.addresses import is_loopback
from rallypoint.base.names import Found, Unresolved, find

_UNKNOWN = Found(())
LOOK_UP_S_MAX = 0.2
"""How long a look-up is waited for. Before each attempt to connect the agent asks again."""


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
    named = frozenset(_resolve(host).addresses)
    own = frozenset(filter(is_own, named))
    name = socket.gethostname()
    mine = _UNKNOWN if own else _resolve(name)  # a look-up that may take long, and decides nothing
    return HostFacts(
        name=name,
        full_names=mine.full_names,
        addresses=frozenset(mine.addresses),
        named=named,
        own=own,
    )


def _resolve(name: str) -> Found:
    """Return what is known of a host by now."""
    try:
        return find(name, LOOK_UP_S_MAX)
    except Unresolved:
        return _UNKNOWN


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
