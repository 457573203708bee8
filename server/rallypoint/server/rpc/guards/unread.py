"""Counts the bytes of answers that are on their way: callers who do not read fill no memory.

gRPC keeps an answer until its caller has read it, however long that takes, and a caller may have
any number of calls. So a host may have only so many bytes of answers that it has not read: then its
next call is refused before its answer is built.
"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import Any

from rallypoint.base.log import get_logger
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.rpc.guards import limits
from rallypoint.server.rpc.guards.callers import connected_peer
from rallypoint.server.rpc.guards.peers import RETRY_S, LimitExceeded, host_of

log = get_logger()


class Unread:
    """The answers that are on their way."""

    def __init__(self) -> None:
        """Start without answers."""
        self._bytes: Counter[str] = Counter()
        """By host."""
        self._warned_s = float("-inf")
        """When the log last named a host."""

    def check(self, context: Any) -> None:
        """Check that the host of a call may have another answer.

        Raises:
            LimitExceeded: when it has not read too many bytes.
        """
        host, most = host_of(connected_peer(context)), limits.UNREAD_BYTES_PER_HOST_MAX
        if self._bytes[host] < most:
            return
        if time.monotonic() - self._warned_s >= limits.WARNED_S_MIN:
            self._warned_s = time.monotonic()
            log.warning("host_limited", host=host, limit=Limit.UNREAD_PER_HOST.value, value=most)
        raise LimitExceeded(Limit.UNREAD_PER_HOST, most, RETRY_S)

    def note(self, context: Any, size: int) -> None:
        """Count the answer of a call until it has been sent, or the call has ended."""
        host = host_of(connected_peer(context))
        self._bytes[host] += size
        context.add_done_callback(partial(self._forget, host, size))

    def _forget(self, host: str, size: int, _: Any) -> None:
        self._bytes[host] -= size
        if not self._bytes[host]:
            del self._bytes[host]
