"""What failed first in a round, and what followed."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.worker import FailedWorker

GROUPS_MAX = 16
"""Groups of equal failures that a round keeps; further failures are only counted."""


class VerdictCause(Enum):
    """The kind of event that a verdict is about."""

    WORKER_FAILED = "worker failed"
    NODE_LOST = "node lost"
    NODE_LEFT = "node left"
    START_OVERDUE = "start overdue"
    START_FAILED = "start failed"
    TOO_FEW_NODES = "too few nodes"
    NO_PROGRESS = "no progress"
    INTERNAL = "internal"
    CANCELLED = "cancelled"
    HUNG = "hung"


class Consequence(Enum):
    """What followed a failure."""

    UNDECIDED = "undecided"
    RESTARTED = "restarted"
    REFORMED = "reformed"
    BUDGET_SPENT = "budget spent"
    CRASH_LOOP = "crash loop"
    NOT_RETRYABLE = "not retryable"
    NO_REQUEUE = "no requeue"
    ENDED = "ended"
    ABANDONED = "abandoned"


class FailureGroup(Struct, frozen=True):
    """Workers of one round that failed alike."""

    key: tuple[str, str]
    """How they ended, and the part of their error that they share."""
    error: str
    """The error of the first of them, as reported."""
    ranks: tuple[tuple[int, int], ...]
    """First and last rank of each range, ascending, with gaps between them."""
    count: int
    is_victim: bool
    exit_code: int | None = None
    """Exit code of all of them; None unless each ended with one."""
    signal: int | None = None
    """Number of the signal that ended each of them; None unless one did."""


class Verdict(Struct, frozen=True):
    """What failed first in a round, where and why."""

    cause: VerdictCause
    round: int
    name: NodeName | None
    """The node at fault; None when no single one is."""
    text: str
    """The verdict as one line, without the consequence."""
    culprit: FailedWorker | None = None
    collateral: tuple[FailedWorker, ...] = ()
    collateral_count: int = 0
    consequence: Consequence = Consequence.UNDECIDED
    repeats: int = 0
    """How often in a row the same early death has occurred; 0 for none."""
    groups: tuple[FailureGroup, ...] = ()
    """All failures, equal ones folded into one group; at most GROUPS_MAX."""
    evidence: str = ""
    """Why this worker is the culprit when the order of arrival does not decide."""

    def without_output(self) -> Verdict:
        """Return the verdict as the history of a job keeps it: small."""
        culprit = self.culprit
        if culprit is not None:
            culprit = replace(culprit, exit=culprit.exit.without_output())
        return replace(self, culprit=culprit, collateral=(), groups=())
