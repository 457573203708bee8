"""What answers to workers say of the coordinator that they come from."""

from __future__ import annotations

from typing import Protocol


class Source(Protocol):
    """The state, or a listener, which is at the last turn in the journal."""

    @property
    def epoch(self) -> int:
        """Of the coordinator."""

    @property
    def durable(self) -> bool:
        """Whether its journal is."""
