"""Who has made a call that a relay passes on."""

from __future__ import annotations

from typing import Any

from rallypoint.server.rpc.calls import Context
from rallypoint.server.rpc.guards.peers import Peers
from rallypoint.wire.credentials import RELAYED_PEER_KEY

AGENTS = "/rallypoint.v1.AgentService/"
"""Calls of agents are not passed on, but carried: what relays say of them is in their streams."""


class RelayedContext:
    """The context of a call that a relay has passed on: its peer is who has made it."""

    def __init__(self, context: Context, peer: str) -> None:
        """Stand for `context`; `peer` has made the call."""
        self.connected: str = context.peer()
        self._context = context
        self._peer = peer

    def peer(self) -> str:
        """Return the peer that has made the call."""
        return self._peer

    def __getattr__(self, name: str) -> Any:
        """Return everything else from the real context."""
        return getattr(self._context, name)


def connected_peer(context: Any) -> str:
    """Return the peer that is connected: a relay, if that has passed the call on."""
    return context.connected if isinstance(context, RelayedContext) else str(context.peer())


def as_made(peers: Peers, method: str, context: Context) -> Any:
    """Return the context of a call, whose peer is the one that counts in the limits of a host."""
    if method.startswith(AGENTS):
        return context
    peer = context.peer()
    caller = find_caller(peers, peer, context)
    return context if caller == peer else RelayedContext(context, caller)


def find_caller(peers: Peers, peer: str, context: Context) -> str:
    """Return the peer that has made a call which has come from `peer`."""
    if not peers.is_relay(peer):  # so for most calls no metadata is read
        return peer
    return peers.find_caller(peer, _relayed_peer(context))


def _relayed_peer(context: Context) -> str:
    """Return for whom a relay has made a call, as the call says; empty: no one.

    The last value counts, because a relay adds its own at the end.
    """
    named = ""
    for key, value in context.invocation_metadata() or ():
        if key == RELAYED_PEER_KEY and isinstance(value, str):
            named = value
    return named
