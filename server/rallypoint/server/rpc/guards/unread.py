"""Counts the bytes of answers that are on their way: callers who do not read fill no memory.

gRPC keeps an answer until its caller has read it, however long that takes, and a caller may have
any number of calls. So a host may have only so many bytes of answers that it has not read: then its
next call is refused before its answer is built.
"""

from __future__ import annotations

from typing import Any

from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.rpc.guards import limits
from rallypoint.server.rpc.guards.callers import connected_peer
from rallypoint.server.rpc.guards.peers import host_of
from rallypoint.server.rpc.guards.quotas import HostQuota


class Unread:
    """The answers that are on their way."""

    def __init__(self) -> None:
        """Start without answers."""
        self._bytes = HostQuota(
            Limit.UNREAD_PER_HOST, "UNREAD_BYTES_PER_HOST_MAX", limits.RETRY_S, warns=True
        )

    def check(self, context: Any) -> None:
        """Check that the host of a call may have another answer.

        Raises:
            LimitExceeded: when it has not read too many bytes.
        """
        self._bytes.require(host_of(connected_peer(context)))

    def note(self, context: Any, size: int) -> None:
        """Count the answer of a call until it has been sent, or the call has ended."""
        host = host_of(connected_peer(context))
        self._bytes.take(host, size)
        context.add_done_callback(lambda _: self._bytes.give_back(host, size))
