"""How often an agent may send heartbeats: one that sends them in a loop slows only itself down."""

from __future__ import annotations

from rallypoint.server.rpc.guards.allowance import Allowance

BEATS_PER_INTERVAL = 4
"""Heartbeats of one connection in each interval. An agent sends one; another after it has learned
of a new interval or has stood still."""
QUEUED_MAX = 128
"""Heartbeats that may come at once beside these, where a lease is that long: the network has let
go of them. What follows them, such as an exit, must not wait and be dated late."""


class Beats(Allowance):
    """The heartbeats that a connection may send now."""

    def delay_s(self, now_s: float, interval_s: float, lease_s: float) -> float:
        """Count a heartbeat; return how long its sender has to wait, in seconds."""
        self._grow(now_s, interval_s, lease_s)
        self.left -= 1
        return max(0.0, -self.left) * interval_s / BEATS_PER_INTERVAL

    def allows(self, now_s: float, interval_s: float, lease_s: float) -> bool:
        """Return whether a heartbeat is not one too many; count it then."""
        self._grow(now_s, interval_s, lease_s)
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def _grow(self, now_s: float, interval_s: float, lease_s: float) -> None:
        most = BEATS_PER_INTERVAL + min(lease_s / interval_s, QUEUED_MAX)
        self.count(now_s, BEATS_PER_INTERVAL / interval_s, most)
