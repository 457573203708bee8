"""Which coordinator an agent tries next. Pure.

Any of several coordinators may own the job. Each knows which one does, so the agent asks one after
another, beginning with the one that answered last, and goes where it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.base.addresses import parse_endpoint

HOPS_MAX = 3
"""How often in a row an agent goes where it is sent without a pause. Coordinators disagree for a
moment while a job moves from one to another."""


class Coordinators:
    """The coordinators that an agent knows."""

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
