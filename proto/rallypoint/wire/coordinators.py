"""Which coordinator is tried next, by agents and clients that know several. Pure.

Any of several coordinators may own a job. Each knows which one does: it forwards a call, and sends
an agent there. So they are asked one after another, beginning with the one that answered last.
"""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.base.addresses import parse_endpoint

HOPS_MAX = 3
"""How often in a row an agent goes where it is sent without a pause. Coordinators disagree for a
moment while a job moves from one to another."""


def describe_start(targets: str) -> str:
    """Return how to start what listens at host:port, or at one of several with commas between."""
    port = targets.partition(",")[0].rpartition(":")[2]
    if "," in targets:
        return f"start one of them: rallypoint coordinator --port {port} --state etcd://…"
    return f"start one there: rallypoint coordinator --port {port}"


class Coordinators:
    """The coordinators that an agent, or one call of a client, knows."""

    def __init__(self, targets: Sequence[str]) -> None:
        """Begin with the first; `targets` are `host:port`, at least one."""
        self._targets = tuple(dict.fromkeys(targets))
        self._at = 0
        """The target that was tried last, and answered if one did."""
        self._owner = ""
        """Where a coordinator has sent the agent; empty: `_at` counts."""
        self._hops = 0
        """In a row, without a pause."""
        self._failures = 0
        """Targets in a row that did not answer, without a pause."""

    @property
    def target(self) -> str:
        """Return `host:port` of the one to try."""
        return self._owner or self._targets[self._at]

    @property
    def order(self) -> tuple[str, ...]:
        """Return all of them, in the order in which they are tried if each fails."""
        rest = self._targets[self._at :] + self._targets[: self._at]
        return (self._owner, *rest) if self._owner else rest

    def welcomed(self) -> None:
        """Note that the target serves the agent."""
        self._hops = self._failures = 0

    def redirected(self, address: str) -> bool:
        """Note that another coordinator owns the job; return whether to go there at once.

        Args:
            address: of the owner, as the target gave it.
        """
        owner = parse_endpoint(address)
        self._hops += 1
        if owner is None or self._hops > HOPS_MAX:
            self._hops = 0
            self.failed()
            return False
        self._owner = "" if owner in self._targets else owner
        if not self._owner:
            self._at = self._targets.index(owner)
        return True

    def failed(self) -> bool:
        """Note that the target does not serve; return whether to try the next one at once."""
        if self._owner:  # the one that has sent the agent there answered
            self._owner = ""
            return self._hops > 0
        self._at = (self._at + 1) % len(self._targets)
        self._failures += 1
        if self._failures >= len(self._targets):
            self._failures = 0
            return False
        return True
