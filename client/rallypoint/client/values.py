"""Values that callers pass and get, without gRPC: importing this module costs nothing."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Scope(Enum):
    """What a barrier or a key belongs to. It is dropped with it."""

    ROUND = 1
    """The round of the caller's token."""
    RUN = 2
    """The run, which outlives its rounds."""


class BreakReason(Enum):
    """Why a generation of a barrier failed."""

    UNKNOWN = 0
    """A reason of a newer coordinator."""
    LOST = 1
    """A participant cannot arrive any more: its worker has ended, or its node is gone."""
    ROUND_STOPPED = 2
    """The round was stopped, or the run is over."""
    OVERDUE = 3
    """Not all participants arrived in time."""


class Participants(NamedTuple):
    """Participants of a barrier, each kind in order."""

    ranks: tuple[int, ...] = ()
    """Global ranks."""
    nodes: tuple[str, ...] = ()
    """Names of nodes."""
    names: tuple[str, ...] = ()
    """Names that the participants have chosen."""
