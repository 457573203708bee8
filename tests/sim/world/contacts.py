"""What a coordinator's host has heard of each agent, whatever the coordinator makes of it.

A coordinator may give up a node that it has not heard for a lease, or whose stream has been broken
for the reconnect grace. Only then may workers of the node outlive the round. Times are those of the
coordinator's journal, which a stall that it has noticed does not move on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.model.spec import NOTHING_ASKED, Timing


def reattach_ms(timing: Timing, lease_ms: int) -> int:
    """Return how long a known agent with this lease may take to return after a restart."""
    own_ms = timing.compute_lease_ms(NOTHING_ASKED, sessions=0)
    return max(own_ms, lease_ms, timing.window_ms)


@dataclass(slots=True)
class _Contact:
    connection: int
    """The newest one."""
    lease_ms: int
    heard_ms: int
    """When its last message arrived."""
    ended_ms: int | None = None
    """When its stream ended on the coordinator's side; None while it is open."""
    was_missed: bool = False
    """It may have counted as lost since its latest round was sealed."""
    awaited_until_ms: int | None = None
    """The coordinator has started again, and may count it as lost from then on; None once the
    journal has its return."""


class Contacts:
    """The agents that one life of a coordinator has heard of, whatever process lives it."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._contacts: dict[SessionId, _Contact] = {}

    def heard(self, input: inputs.Hello | inputs.Report | inputs.Heartbeat, now_ms: int) -> None:
        """Note that a message has arrived."""
        if isinstance(input, inputs.Hello):
            session, connection = input.identity.session, input.connection
            known = self._contacts.get(session)
            if known is None:
                # Other sessions can only make the lease longer.
                lease_ms = self._timing.compute_lease_ms(input.identity.spec, sessions=0)
                self._contacts[session] = _Contact(connection, lease_ms, now_ms)
            elif connection > known.connection:
                known.was_missed = self._is_missed(known, now_ms)
                known.connection, known.ended_ms, known.heard_ms = connection, None, now_ms
            return
        known = self._contacts.get(input.sender.session)
        if known is not None and known.connection == input.sender.connection:
            known.was_missed = self._is_missed(known, now_ms)
            known.heard_ms = now_ms

    def returned(self, session: SessionId) -> None:
        """Note that the journal has the return of an agent: a later start gives it full time."""
        if session in self._contacts:
            self._contacts[session].awaited_until_ms = None

    def ended(self, session: SessionId, connection: int, now_ms: int) -> None:
        """Note that a stream has ended, on either side."""
        known = self._contacts.get(session)
        if known is not None and known.connection == connection and known.ended_ms is None:
            known.ended_ms = now_ms

    def sealed(self, sessions: Iterable[SessionId]) -> None:
        """Note that a round was sealed with these members: what was before does not count."""
        for session in sessions:
            self._contacts[session].was_missed = False

    def held_back(self, now_ms: int) -> None:
        """Note that journal time was held back to `now_ms`."""
        for known in self._contacts.values():
            known.heard_ms = min(known.heard_ms, now_ms)
            known.ended_ms = None if known.ended_ms is None else min(known.ended_ms, now_ms)

    def restarted(self, ended_ms: int, now_ms: int) -> None:
        """Note that the process has ended, and that another one waits for everyone from now on."""
        for known in self._contacts.values():
            known.was_missed = self._is_missed(known, ended_ms)
            known.ended_ms = known.heard_ms = now_ms
            until_ms = now_ms + reattach_ms(self._timing, known.lease_ms)
            if known.awaited_until_ms is not None:  # since an earlier start
                until_ms = max(known.awaited_until_ms, now_ms + self._timing.window_ms)
            known.awaited_until_ms = until_ms

    def is_missed(self, session: SessionId, now_ms: int) -> bool:
        """Return whether the coordinator may have lost an agent since its latest round was sealed.

        True for one that it has never heard of.
        """
        known = self._contacts.get(session)
        return known is None or self._is_missed(known, now_ms)

    def awaits_return(self, session: SessionId, now_ms: int) -> bool:
        """Return whether an agent's stream has ended so recently that the agent may return."""
        known = self._contacts.get(session)
        if known is None or known.ended_ms is None:
            return False
        return now_ms - known.ended_ms < max(known.lease_ms, self._timing.lease_ms)

    def _is_missed(self, known: _Contact, now_ms: int) -> bool:
        if known.awaited_until_ms is not None:
            return known.was_missed or now_ms >= known.awaited_until_ms
        ended_ms, grace_ms = known.ended_ms, self._timing.reconnect_grace_ms
        is_broken = ended_ms is not None and now_ms - ended_ms >= grace_ms
        return known.was_missed or is_broken or now_ms - known.heard_ms >= known.lease_ms
