"""A job and its latest run.

Times are milliseconds of journal time unless a name says otherwise; journal time never runs
backwards and means nothing outside one coordinator.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.server.core.model.desired import Drain
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.network import NetworkSuspicion
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import (
    Departure,
    Round,
    RoundReason,
    RoundSummary,
    Timeline,
)
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Verdict
from rallypoint.server.core.model.volatile import Volatile

JOBS_MAX = 4_096
"""Live and remembered jobs of one coordinator; beyond that the oldest ended jobs are dropped."""
HISTORY_MAX = 64
"""Ended rounds that a job remembers, of all its runs."""
RUNS_MAX = 64
"""Runs that a job remembers, the latest included."""
OPERATIONS_MAX = 256
"""Operators' requests that a job remembers, so that one that is sent again is done once."""
FORGOTTEN_MAX = 1_024
"""Jobs that were forgotten of which `Gone` is remembered."""
DRAIN_REQUESTS_MAX = 1_024


class WaitKind(Enum):
    """What a job waits for."""

    REATTACH = "reattach"
    NODES = "nodes"
    LAST_CALL = "last call"
    RETURNING = "returning"
    BACKOFF = "backoff"
    START = "start"
    STOP = "stop"
    GROWTH = "growth"
    FAREWELL = "farewell"
    DRAIN = "drain"
    FENCE = "fence"
    NETWORK_SUSPECTED = "network suspected"
    BARRIER = "barrier"
    HANG = "hang"


class DrainRequest(Struct, frozen=True):
    """An operator's request that an agent leaves; open until it says Goodbye."""

    name: NodeName
    session: SessionId
    drain: Drain


class NodeHealth(Struct, frozen=True):
    """Health of a node. It belongs to the node's name, so it outlives agents and runs."""

    name: NodeName
    failures_ms: tuple[int, ...] = ()
    """Times of the failures that count towards the next quarantine, oldest first; fewer than
    `quarantine_after`."""
    quarantined_until_ms: int = 0
    """End of the latest quarantine, which may be over; 0 when there was none."""
    quarantines: int = 0
    cordoned: bool = False
    reason: str = ""
    """The operator's words for a cordon, else the latest failure."""


class Fence(Struct, frozen=True):
    """A node whose workers may still run although no round waits for it."""

    session: SessionId
    name: NodeName
    until_ms: int
    """When they are certainly dead."""


class Counts(Struct, frozen=True):
    """What a run counts from round to round. What happens in a row starts again after progress."""

    restart_count: int = 0
    """Charged restarts; at most the spec's `max_restarts`."""
    step: int = 0
    """Highest step that a worker reported in a round that has ended; only grows."""
    streak: int = 0
    """Charged failures in a row."""
    crash_signature: str = ""
    """Signature of the latest early death; empty when the latest failure was not one."""
    crash_repeats: int = 0
    """How many rounds in a row died early with the same `crash_signature`."""
    reformations: int = 0
    """Uncharged re-formations in a row."""
    growths: int = 0
    """Growths in a row; each doubles grow_after."""
    drains: int = 0
    """Rounds in a row that ended for a drain."""

    def after_progress(self) -> Counts:
        """Return the counts after a round that made progress."""
        return Counts(restart_count=self.restart_count, step=self.step)


class RunSummary(Struct, frozen=True):
    """A run that has ended."""

    run: int
    outcome: Outcome
    verdict: Verdict | None
    """What failed in the latest round that failed, without the output of its workers."""
    restart_count: int
    max_restarts: int
    round: int
    """Number of its latest round; 0: none was formed."""
    opened_ms: int
    closed_ms: int


class Gone(Struct, frozen=True):
    """What remains of a job that was deleted or forgotten, for a later one of the same name."""

    ended_run: int = 0
    """The latest run that has ended. Its agents must not begin another one."""
    round_number: int = 0
    """Its highest round number; the next job of the name counts on from there."""
    operations: tuple[str, ...] = ()
    """Operators' requests, so that one that is sent again does not count for another job."""
    fenced_until_ms: int = 0
    """Until then, workers of its nodes may still run."""


class Job(Struct, frozen=True):
    """One job and its latest run. Holds nothing whose size grows with every message."""

    job_id: JobId
    run: int
    spec: JobSpec
    opened_ms: int = 0
    phase: Phase = Phase.FORMING
    forming_since_ms: int = 0
    first_ready_ms: Volatile[int | None] = None
    """When min_nodes were first ready in this phase; the last call's limit counts from here."""
    last_arrival_ms: Volatile[int] = 0
    """When a node last became ready in this phase, or joined while a round ran."""
    first_newcomer_ms: Volatile[int | None] = None
    """When the first node that a growth could add joined; the settle limit counts from here."""
    next_reason: RoundReason = RoundReason.FIRST
    """Why the round that is being formed begins."""
    disrupted_ms: int | None = None
    """When the event happened that ended the previous round."""
    backoff_until_ms: int = 0
    round_number: int = 0
    """Highest round number so far; only grows."""
    rounds_before: int = 0
    """The same when the run was opened."""
    round: Round | None = None
    """Set exactly while RUNNING or STOPPING."""
    slots: tuple[NodeName, ...] = ()
    """Names by group rank of the latest round that was sealed."""
    counts: Counts = Counts()
    verdict: Verdict | None = None
    outcome: Outcome | None = None
    closed_ms: int | None = None
    history: tuple[RoundSummary, ...] = ()
    """Ended rounds of all runs, oldest first, at most HISTORY_MAX."""
    runs: tuple[RunSummary, ...] = ()
    """Earlier runs, oldest first, at most RUNS_MAX - 1."""
    lost: tuple[Departure, ...] = ()
    drain_requests: tuple[DrainRequest, ...] = ()
    """Open requests of operators, at most DRAIN_REQUESTS_MAX."""
    launch_id: str = ""
    since_epoch: int = 0
    """Epoch since which the coordinator remembers this run: what came before may be forgotten."""
    health: tuple[NodeHealth, ...] = ()
    """Nodes that have failed or were kept out, by name, at most `health.HEALTH_MAX`."""
    updated: frozenset[str] = frozenset()
    """Fields of the specification that an operator has changed: agents need not agree with them."""
    spec_revision: int = 0
    """Revision at which an operator last changed the specification; 0: none has in this run."""
    operations: tuple[str, ...] = ()
    """Ids and digests of operators' requests that were carried out, at most OPERATIONS_MAX."""
    next_arrival: int = 0
    empty_since_ms: int | None = None
    """When the last node was lost; None while there is one."""
    breaks: Volatile[NetworkSuspicion] = NetworkSuspicion()
    """The recent breaks of its streams, and whether the network is suspected for this job."""
    fences: tuple[Fence, ...] = ()
    """Fences of all runs of the job, oldest first; empty without `--fence-after`."""
    unknown_past_until_ms: int = 0
    """Until then, workers of nodes unknown to this coordinator may run; nothing ends it earlier."""
    ended_round: Timeline | None = None
    """How the previous round of the run ended, until it was swept; None before there was one."""

    @property
    def latest_round(self) -> int:
        """Number of the latest round of the run; 0: none was formed."""
        return self.round_number if self.round_number > self.rounds_before else 0
