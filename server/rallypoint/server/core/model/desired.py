"""The desired state of a node. `rounds.desired` derives it from the job and the node."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import Assignment, RoundHeader, RoundReason
from rallypoint.server.core.model.verdict import Verdict


class Drain(Struct, frozen=True):
    """A node leaves with notice: its workers run until they are done or the time is up."""

    until_ms: int
    reason: str


class DesiredRun(Struct, frozen=True):
    """Exactly these workers run."""

    header: RoundHeader
    assignment: Assignment
    max_restarts: int
    drain: Drain | None = None
    """Set while the node drains."""
    held_token: str = ""
    """The token of its workers; empty for a round that this coordinator has sealed."""
    reached_at: tuple[str, ...] = ()
    """Of the round, for its first node alone."""


class DesiredStop(Struct, frozen=True):
    """Nothing of this round runs."""

    round: int
    reason: RoundReason
    shutdown_timeout_ms: int
    text: str
    drain: Drain | None = None
    """Set while the node drains."""


class DesiredStandby(Struct, frozen=True):
    """Attached, and nothing runs."""

    spare: bool


class DesiredFinished(Struct, frozen=True):
    """The run has ended."""

    outcome: Outcome
    verdict: Verdict | None
    restart_count: int
    round: int


class DesiredReleased(Struct, frozen=True):
    """The session is over: the node was drained."""

    text: str


Desired = DesiredRun | DesiredStop | DesiredStandby | DesiredReleased | DesiredFinished
