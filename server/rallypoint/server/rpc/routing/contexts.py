"""Contexts that stand for the one that gRPC gives to a servicer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rallypoint.server.coordinator import CoordinatorEnded
from rallypoint.server.rpc.calls import Context
from rallypoint.server.rpc.guards.callers import find_caller
from rallypoint.server.rpc.guards.peers import Peers
from rallypoint.server.rpc.routing.marks import Metadata, forwarded, original_peer


class OwnedContext:
    """The context of a call to a shard of this process.

    The shard writes nothing once this process may have lost it, also when the process has stood
    still for so long that nothing has halted the shard yet. The peer is the client, also when
    another coordinator has forwarded the call.
    """

    def __init__(self, context: Context, owns: Callable[[], bool], peers: Peers) -> None:
        """Stand for a context.

        Args:
            context: of the call.
            owns: whether the shard is certainly owned at this moment.
            peers: know the relays, also of calls that another coordinator has forwarded.
        """
        self._context = context
        self._owns = owns
        self._peers = peers

    def peer(self) -> str:
        """Return the peer that has made the call."""
        return find_caller(self._peers, original_peer(self._context), self._context)

    async def write(self, answer: Any) -> None:
        """Write an answer.

        Raises:
            CoordinatorEnded: when another coordinator may own the shard.
        """
        if not self._owns():
            raise CoordinatorEnded
        await self._context.write(answer)

    def __getattr__(self, name: str) -> Any:
        """Return everything else from the real context."""
        return getattr(self._context, name)


class PartContext:
    """The context of a part of a call: of one shard of this process."""

    def __init__(
        self,
        context: Context,
        shard: int,
        write: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        """Stand for `context`; `write` takes the answers of a stream."""
        self._context = context
        self._shard = shard
        self._write = write

    def peer(self) -> str:
        """Return the peer that has made the call."""
        return original_peer(self._context)

    def invocation_metadata(self) -> Metadata:
        """Return the metadata of a forwarded call."""
        return forwarded(self._context, self._shard)

    def time_remaining(self) -> float | None:
        """Return the time until the deadline, in seconds; None: there is none."""
        return self._context.time_remaining()

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._context.done()

    async def write(self, answer: Any) -> None:
        """Pass an answer on."""
        assert self._write is not None
        await self._write(answer)
