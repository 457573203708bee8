"""Who has made a call that a relay, or another coordinator, passes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rallypoint.server.access.usage.peers import Peers
from rallypoint.server.contract.calls import Context
from rallypoint.wire.credentials import RELAYED_PEER_KEY

Metadata = list[tuple[str, str | bytes]]
AGENTS = "/rallypoint.v1.AgentService/"
"""Calls of agents are not passed on, but carried: what relays say of them is in their streams."""


class StandIn:
    """The context of a call, with some of it otherwise than gRPC gives it to a servicer."""

    def __init__(
        self,
        context: Context,
        peer: str,
        write: Callable[[Any], Awaitable[None]] | None = None,
        metadata: Metadata | None = None,
    ) -> None:
        """Stand for a context.

        Args:
            context: of the call.
            peer: that has made it.
            write: takes the answers of a stream; None: gRPC.
            metadata: of the call; None: what it has.
        """
        self.connected = connected_peer(context)
        self._context = context
        self._peer = peer
        self._metadata = metadata
        if write is not None:
            self.write = write

    def peer(self) -> str:
        """Return the peer that has made the call."""
        return self._peer

    def invocation_metadata(self) -> Any:
        """Return the metadata of the call."""
        return self._context.invocation_metadata() if self._metadata is None else self._metadata

    def __getattr__(self, name: str) -> Any:
        """Return everything else from the real context."""
        return getattr(self._context, name)


def connected_peer(context: Any) -> str:
    """Return the peer that is connected: a relay, if that has passed the call on."""
    return context.connected if isinstance(context, StandIn) else str(context.peer())


def as_made(peers: Peers, method: str, context: Context) -> Any:
    """Return the context of a call, whose peer is the one that counts in the limits of a host."""
    if method.startswith(AGENTS):
        return context
    peer = context.peer()
    caller = find_caller(peers, peer, context)
    return context if caller == peer else StandIn(context, caller)


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
