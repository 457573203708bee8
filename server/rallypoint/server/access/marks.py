"""Metadata of calls between coordinators.

A forwarded call has the metadata of the call of the client, the number of the shard that it is
about, and the peer that has made it. The second stops it from being forwarded once more. The last
only counts towards the limits of a host: who can reach a coordinator can also connect to it.

A coordinator that asks who calls sends what it has found out, signed, not the client's token. It
believes the shard and the peer of signed calls alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rallypoint.server.access.gate import CURRENT
from rallypoint.server.access.identities import KEY
from rallypoint.server.access.identities import SHARD_KEY as SHARD_KEY
from rallypoint.server.access.usage.callers import Metadata, StandIn, find_caller
from rallypoint.server.access.usage.peers import Peers
from rallypoint.server.contract.calls import Context
from rallypoint.server.shell.coordinator import CoordinatorEnded
from rallypoint.wire.credentials import TOKEN_KEY

PEER_KEY = "rallypoint-peer"
DIGITS_MAX = 9
"""Of the number of a shard: Python refuses to read a number of thousands of digits."""
_OWN = (SHARD_KEY, PEER_KEY, KEY, "user-agent", "content-type", "te")


def marked_shard(context: Context) -> int | None:
    """Return the shard that a forwarded call is about; None for a call of a client."""
    entry = CURRENT.get()
    if entry is not None and not entry.is_forwarded:
        return None  # a client cannot pose as a coordinator
    text = _find(context, SHARD_KEY)
    if text is None:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    return int(text) if is_number else -1


def original_peer(context: Context) -> str:
    """Return the peer that has made a call, also when another coordinator has forwarded it."""
    entry = CURRENT.get()
    if entry is not None:
        return entry.call.peer  # of a forwarded call, as it was signed
    marked = None if marked_shard(context) is None else _find(context, PEER_KEY)
    return marked or context.peer()


def forwarded(context: Context, shard: int) -> Metadata:
    """Return the metadata with which a call is forwarded to the owner of a shard."""
    kept: Metadata = [
        (key, value)
        for key, value in context.invocation_metadata() or ()
        if key not in _OWN and not key.startswith(("grpc-", ":"))
    ]
    entry = CURRENT.get()
    if entry is not None:
        kept = [(key, value) for key, value in kept if key != TOKEN_KEY]
        kept.append((KEY, entry.sign(shard)))
    return [*kept, (SHARD_KEY, str(shard)), (PEER_KEY, original_peer(context))]


def owned(context: Context, owns: Callable[[], bool], peers: Peers) -> Any:
    """Return the context of a call to a shard of this process, whose peer is the client.

    The shard writes nothing once this process may have lost it, also when the process has stood
    still for so long that nothing has halted the shard yet.

    Args:
        context: of the call.
        owns: whether the shard is certainly owned at this moment.
        peers: know the relays, also of calls that another coordinator has forwarded.
    """

    async def write(answer: Any) -> None:
        if not owns():
            raise CoordinatorEnded
        await context.write(answer)

    return StandIn(context, find_caller(peers, original_peer(context), context), write)


def _find(context: Context, wanted: str) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == wanted and isinstance(value, str):
            return value
    return None
