"""Counts failed attempts to authenticate, for each host.

A valid token or certificate always opens the door: behind one address there can be a whole cluster,
and one faulty agent must not lock the others out. What a host may do without one is limited: to
fail, and to fill the log.
"""

from __future__ import annotations

from msgspec import Struct, field

from rallypoint.base.log import get_logger
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.rpc.calls import LimitExceeded
from rallypoint.server.rpc.guards.allowance import Allowance
from rallypoint.server.rpc.guards.limits import HOSTS_MAX, WARNED_S_MIN
from rallypoint.server.rpc.guards.peers import RETRY_S

log = get_logger()

ATTEMPTS_PER_MINUTE_MAX = 600
"""Failed attempts of a host: more than the agents of a rack whose token has been replaced."""


class _Host(Struct):
    """What a host may still do."""

    attempts: Allowance = field(default_factory=Allowance)
    """That may fail now."""
    warned_s: float | None = None
    """When the log last named it."""


class Attempts:
    """Failed attempts of all hosts."""

    def __init__(self) -> None:
        """Start without any."""
        self._hosts: dict[str, _Host] = {}
        """The one that has failed last is the last one; at most `HOSTS_MAX`."""

    def fail(self, host: str, now_s: float) -> None:
        """Count a failed attempt.

        Args:
            host: as `host_of` names it.
            now_s: monotonic time.

        Raises:
            LimitExceeded: when the host has failed too often.
        """
        used = self._hosts.pop(host, None) or _Host()
        self._hosts[host] = used
        if len(self._hosts) > HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]
        _require(host, used, now_s)
        used.attempts.left -= 1

    def require(self, host: str, now_s: float) -> None:
        """Check that another attempt of a host may fail; nothing is counted.

        Args:
            host: as `host_of` names it.
            now_s: monotonic time.

        Raises:
            LimitExceeded: when the host has failed too often.
        """
        used = self._hosts.get(host)
        if used is not None:
            _require(host, used, now_s)


def _require(host: str, used: _Host, now_s: float) -> None:
    per_s, most = ATTEMPTS_PER_MINUTE_MAX / 60, ATTEMPTS_PER_MINUTE_MAX
    if used.attempts.count(now_s, per_s, most) >= 1:
        return
    if used.warned_s is None or now_s - used.warned_s >= WARNED_S_MIN:
        used.warned_s = now_s
        log.warning(
            "host_limited",
            host=host,
            limit=Limit.FAILED_ATTEMPTS_PER_HOST.value,
            value=ATTEMPTS_PER_MINUTE_MAX,
        )
    raise LimitExceeded(Limit.FAILED_ATTEMPTS_PER_HOST, ATTEMPTS_PER_MINUTE_MAX, RETRY_S)
