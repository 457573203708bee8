"""What a node knows, at one moment: values that any thread may read."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.agent.core.held_round import HeldRound
from rallypoint.agent.core.state import Ending
from rallypoint.agent.embedded.ended import Ended


class View(Struct, frozen=True):
    """The round that the node holds, and how its part in the job ends."""

    held: HeldRound | None = None
    taken: HeldRound | None = None
    """The round that the program has taken, in its last state: the node may be further."""
    ending: Ending | None = None
    """How this node's part ends, once that is decided."""
    ended: Ended | None = None
    """Set once the agent has ended: nothing of it runs any more."""

    @property
    def is_over(self) -> bool:
        """True once the agent has ended."""
        return self.ended is not None

    @property
    def is_ending(self) -> bool:
        """True when no further round begins on this node."""
        return self.is_over or self.ending is not None

    def wants(self, number: int) -> bool:
        """Return whether this round has to start or continue here."""
        held = self.held
        is_held = held is not None and held.number == number and not held.is_stopping
        return is_held and not self.is_ending

    def is_clean(self, number: int) -> bool:
        """Return whether no process of this round is left here."""
        return self.is_over or self.held is None or self.held.number != number
