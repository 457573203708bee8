"""How much each host may have of something at once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rallypoint.base.log import get_logger
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.rpc.calls import LimitExceeded
from rallypoint.server.rpc.guards import limits

log = get_logger()


class HostQuota:
    """What each host has of one kind: calls, watches, or bytes."""

    def __init__(
        self, limit: Limit, most: str, retry_s: float | None = None, *, warns: bool = False
    ) -> None:
        """Start without any.

        Args:
            limit: for the refusal.
            most: name of the constant in `limits`: what one host may have.
            retry_s: when another attempt may succeed; None: probably not soon.
            warns: whether the log names a host that is refused, now and then.
        """
        self._limit = limit
        self._most = most
        self._retry_s = retry_s
        self._warns = warns
        self._warned_s = float("-inf")
        self._used: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """What all hosts have."""
        return self._used.total()

    def require(self, host: str) -> None:
        """Check that a host may have more.

        Raises:
            LimitExceeded: when it has as much as it may have.
        """
        most: int = getattr(limits, self._most)
        if self._used[host] < most:
            return
        if self._warns and time.monotonic() - self._warned_s >= limits.WARNED_S_MIN:
            self._warned_s = time.monotonic()
            log.warning("host_limited", host=host, limit=self._limit.value, value=most)
        raise LimitExceeded(self._limit, most, self._retry_s)

    def take(self, host: str, amount: int = 1) -> None:
        """Let a host have more; `give_back` it afterwards. Nothing is checked."""
        self._used[host] += amount

    def give_back(self, host: str, amount: int = 1) -> None:
        """Take it from the host again."""
        self._used[host] -= amount
        if not self._used[host]:
            del self._used[host]

    @contextmanager
    def taking(self, host: str) -> Iterator[None]:
        """Let a host have one more while the context is open.

        Raises:
            LimitExceeded: when it has as many as it may have.
        """
        self.require(host)
        self.take(host)
        try:
            yield
        finally:
            self.give_back(host)
