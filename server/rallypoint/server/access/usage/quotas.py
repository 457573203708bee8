"""How much each host may have of something at once, and how often it may do something."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from rallypoint.base.log import get_logger
from rallypoint.server.access.usage.allowances import Allowance, find_latest
from rallypoint.server.contract import limits
from rallypoint.server.contract.calls import LimitExceeded
from rallypoint.server.core.messages.refusals import Limit

log = get_logger()


class HostLimit:
    """A limit that holds for each host by itself."""

    def __init__(
        self, limit: Limit, most: str, retry_s: float | None = None, *, warns: bool = True
    ) -> None:
        """Begin without hosts.

        Args:
            limit: for the refusal.
            most: name of the constant in `limits`.
            retry_s: when another attempt may succeed; None: probably not soon.
            warns: whether the log names a host that is refused, now and then.
        """
        self._limit = limit
        self._most = most
        self._retry_s = retry_s
        self._warns = warns
        self._warned_s: dict[str, float] = {}
        """When the log has named each host."""

    @property
    def most(self) -> int:
        """What one host may have."""
        most: int = getattr(limits, self._most)
        return most

    def refuse(self, host: str, now_s: float | None = None, wait_s: float = 0.0) -> NoReturn:
        """Refuse a host.

        Args:
            host: as `host_of` names it.
            now_s: monotonic time; None: now.
            wait_s: another attempt cannot succeed sooner.

        Raises:
            LimitExceeded: always.
        """
        now_s = time.monotonic() if now_s is None else now_s
        if self._warns and now_s - self._warned_s.get(host, -math.inf) >= limits.WARNED_S_MIN:
            self._warned_s.pop(host, None)
            find_latest(self._warned_s, host, lambda: now_s, limits.HOSTS_MAX)
            log.warning("host_limited", host=host, limit=self._limit.value, value=self.most)
        retry_s = None if self._retry_s is None else max(self._retry_s, wait_s)
        raise LimitExceeded(self._limit, self.most, retry_s)


class HostQuota(HostLimit):
    """What each host has of one kind: calls, watches, or bytes."""

    def __init__(
        self, limit: Limit, most: str, retry_s: float | None = None, *, warns: bool = False
    ) -> None:
        """Start without any; see `HostLimit`."""
        super().__init__(limit, most, retry_s, warns=warns)
        self._used: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """What all hosts have."""
        return self._used.total()

    def require(self, host: str, now_s: float | None = None) -> None:
        """Check that a host may have more; `now_s` is monotonic time, None: now.

        Raises:
            LimitExceeded: when it has as much as it may have.
        """
        if self._used[host] >= self.most:
            self.refuse(host, now_s)

    def take(self, host: str, amount: int = 1) -> None:
        """Let a host have more; `give_back` it afterwards. Nothing is checked."""
        self._used[host] += amount

    def give_back(self, host: str, amount: int = 1) -> None:
        """Take it from the host again."""
        self._used[host] -= amount
        if not self._used[host]:
            del self._used[host]

    @contextmanager
    def taking(self, host: str, now_s: float | None = None) -> Iterator[None]:
        """Let a host have one more while the context is open; `now_s` as in `require`.

        Raises:
            LimitExceeded: when it has as many as it may have.
        """
        self.require(host, now_s)
        self.take(host)
        try:
            yield
        finally:
            self.give_back(host)


class HostRate(HostLimit):
    """What each host may still do: so much at once, and so much a minute after that."""

    def __init__(self, limit: Limit, per_minute: str, at_once: str) -> None:
        """Begin with every allowance full.

        Args:
            limit: for the refusal, which has the number per minute.
            per_minute: name of the constant in `limits`.
            at_once: name of the one for a full allowance.
        """
        super().__init__(limit, per_minute, limits.RETRY_S)
        self._at_once = at_once
        self._hosts: dict[str, Allowance] = {}
        """The one that has done it last is the last one; at most `HOSTS_MAX`."""

    def require(self, host: str, now_s: float) -> None:
        """Check that a host may do it once more; nothing is counted.

        Raises:
            LimitExceeded: when it has done it too often.
        """
        allowance = self._hosts.get(host)
        if allowance is not None:
            left = self._grow(allowance, now_s)
            if left < 1:
                self.refuse(host, now_s, (1 - left) * 60 / self.most)

    def count(self, host: str, now_s: float, amount: float = 1.0) -> None:
        """Note that a host has done it so many times. Nothing is checked."""
        allowance = find_latest(self._hosts, host, Allowance, limits.HOSTS_MAX)
        self._grow(allowance, now_s)
        allowance.left -= amount

    def use(self, host: str, now_s: float) -> None:
        """Note that a host has done it once more.

        Raises:
            LimitExceeded: when it has done it too often.
        """
        self.require(host, now_s)
        self.count(host, now_s)

    def give_back(self, host: str, amount: float) -> None:
        """Note that a host has not done it so many times."""
        allowance = self._hosts.get(host)
        if allowance is not None:
            allowance.left += amount

    def _grow(self, allowance: Allowance, now_s: float) -> float:
        most: int = getattr(limits, self._at_once)
        return allowance.count(now_s, self.most / 60, most)
