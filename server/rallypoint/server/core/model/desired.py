"""The desired state of a node. `rounds.desired` derives it from the job and the node."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import Assignment, RoundHeader, RoundReason
from rallypoint.server.core.model.verdict import Verdict


class DesiredRun(Struct, frozen=True):
    """Exactly these workers run."""

    header: RoundHeader
    assignment: Assignment
    max_restarts: int


class DesiredStop(Struct, frozen=True):
    """Nothing of this round runs."""

    round: int
    reason: RoundReason
    shutdown_timeout_ms: int
    text: str


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
