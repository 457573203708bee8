"""The reports of an agent, named as in the protocol. The coordinator acknowledges every report."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.agent.core.held_round import LocalWorker, Milestone


class ReadyReport(Struct, frozen=True):
    """Nothing of `round` or an earlier one runs here."""

    round: int
    port: int


class StartedReport(Struct, frozen=True):
    """All local workers were started."""

    round: int
    pids: tuple[int, ...]


class ReachedReport(Struct, frozen=True):
    """Every local worker has reached a milestone."""

    round: int
    milestone: Milestone
    at_ms: int
    """When the last of them did."""


class ProgressReport(Struct, frozen=True):
    """The local workers stand still, or one of them makes progress again."""

    round: int
    still_since_ms: int | None
    """When the latest progress of any of them was made; None: they make progress."""


class StartFailedReport(Struct, frozen=True):
    """A worker could not be started."""

    round: int
    text: str
    """Why."""
    is_permanent: bool = False
    """No restart can cure it on this node."""


class LeavingReport(Struct, frozen=True):
    """The node leaves its round: the agent is exiting and stops the workers."""

    round: int
    text: str
    """Why."""


class RecordedReport(Struct, frozen=True):
    """A running worker has recorded an error, so it has failed."""

    round: int
    worker: LocalWorker


class ExitedReport(Struct, frozen=True):
    """A worker ended."""

    round: int
    worker: LocalWorker


class SucceededReport(Struct, frozen=True):
    """Every local worker exited with 0."""

    round: int


class BlockedReport(Struct, frozen=True):
    """Processes survived SIGKILL, or something else keeps the node from its next round."""

    round: int
    pids: tuple[int, ...]
    text: str = ""
    """What else; empty: processes survived SIGKILL."""


class DrainingReport(Struct, frozen=True):
    """The node is about to leave; its workers have been notified."""

    until_ms: int
    reason: str


class GoodbyeKind(Enum):
    """Why the agent leaves."""

    FINISHED = "finished"
    RELEASED = "released"
    SIGNAL = "signal"
    DRAINED = "drained"
    ERROR = "error"


class GoodbyeReport(Struct, frozen=True):
    """The node leaves and is clean."""

    kind: GoodbyeKind
    text: str


Report = (
    DrainingReport
    | ReadyReport
    | StartedReport
    | ReachedReport
    | ProgressReport
    | StartFailedReport
    | LeavingReport
    | RecordedReport
    | ExitedReport
    | SucceededReport
    | BlockedReport
    | GoodbyeReport
)
