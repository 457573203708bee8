"""The words of the coordinator's core: specs, nodes, workers, rounds, jobs.

Everything here is a frozen value. Times are milliseconds of journal time unless a name says
otherwise; journal time never runs backwards and means nothing outside one coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NewType

from rallypoint.server.core.spec import JobSpec as JobSpec  # one of the words

JobId = NewType("JobId", str)
SessionId = NewType("SessionId", str)
"""Incarnation of an agent: 32 hexadecimal digits, one per agent process."""
NodeName = NewType("NodeName", str)

NODES_PER_JOB_MAX = 16_384
"""Sixteen times the largest job that is measured; beyond it a relay per rack is the answer."""
JOBS_MAX = 4_096
"""Live and remembered jobs of one coordinator; the oldest ended ones make room."""
HISTORY_MAX = 64
"""Ended rounds that a job remembers."""
FAILURES_MAX = 16
"""Failed workers of a round that are kept whole; later ones are only counted."""
ASKED_MAX = 1_024
GROUPS_MAX = 16
"""Kinds of failures of a round that are told apart; further ones are only counted."""
LOST_MAX = 16
"""Lost nodes that a job remembers for its explanations."""


class Phase(Enum):
    """Where a run stands."""

    FORMING = "forming"
    RUNNING = "running"
    STOPPING = "stopping"
    CLOSED = "closed"


class Outcome(Enum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


class Activity(Enum):
    """What runs on a node, as far as the coordinator knows."""

    UNREADY = "unready"  # processes of an earlier round may still run there
    READY = "ready"  # clean, with a reserved port
    ASSIGNED = "assigned"  # it has a place in the round and has not said Started
    STARTED = "started"
    SUCCEEDED = "succeeded"  # every local worker ended with 0, unprompted
    FAILED = "failed"  # a local worker failed; others may still run
    BLOCKED = "blocked"  # processes survived SIGKILL


class Bar(Enum):
    """Whether rounds may have a place for a node, whatever runs there."""

    NONE = "none"
    QUARANTINED = "quarantined"  # only where fewer than min_nodes would be left without it
    CORDONED = "cordoned"  # never


class RoundReason(Enum):
    """Why a round began or ended."""

    UNKNOWN = "unknown"
    FIRST = "first"
    WORKER_FAILED = "worker failed"
    NODE_LOST = "node lost"
    NODE_LEFT = "node left"
    GROWTH = "growth"
    START_OVERDUE = "start overdue"
    SUCCEEDED = "succeeded"
    CLOSED = "closed"
    DRAINED = "drained"


LEAVING = frozenset({RoundReason.NODE_LEFT, RoundReason.DRAINED})
"""Reasons of departures that were on purpose."""


class VerdictCause(Enum):
    """What kind of event a verdict names."""

    WORKER_FAILED = "worker failed"
    NODE_LOST = "node lost"
    NODE_LEFT = "node left"
    START_OVERDUE = "start overdue"
    CANNOT_START = "cannot start"
    TOO_FEW_NODES = "too few nodes"
    NO_PROGRESS = "no progress"
    INTERNAL = "internal"


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


class Symptom(Enum):
    """What the end of a worker says of its cause."""

    PRIMARY = "primary"  # a cause of its own
    UNKNOWN = "unknown"  # nothing either way
    VICTIM = "victim"  # what the failure of another worker looks like from there


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
    PATH = "path"


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """What a worker wrote down before it died."""

    message: str
    traceback: str = ""
    before_exit_ms: int | None = None
    """How long before the end of the process it was written; None when it has no time."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How a worker ended. Exactly one of `exit_code` and `signal` is set."""

    local_rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    agent_signalled_first: bool = False
    """The agent had signalled it before it ended: the exit is a consequence, whatever its code."""
    ago_ms: int = 0
    """Age of the exit when it was reported."""
    ran_ms: int = 0
    error: ErrorRecord | None = None
    stderr_tail: str = ""
    signalled_before_ms: int | None = None
    """How long before its end the agent had signalled it; None when it had not."""
    oom_killed: bool = False
    """The kernel says that it killed the process for want of memory."""
    failed_ms: int | None = None
    """When it failed, as Unix time by its node's clock: for people to read, decides nothing."""
    error_file: str = ""
    """Where on its node it wrote its error down; empty when it did not."""

    @property
    def has_recorded_first(self) -> bool:
        """True when the worker had written down its error before the agent signalled it."""
        if self.error is None or self.error.before_exit_ms is None:
            return False
        signalled_ms = self.signalled_before_ms
        return signalled_ms is not None and self.error.before_exit_ms > signalled_ms

    @property
    def is_failure(self) -> bool:
        """True for an end that nobody asked for and that is not a success."""
        is_prompted = self.agent_signalled_first and not self.has_recorded_first
        return not is_prompted and self.exit_code != 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """A node's place in a round."""

    group_rank: int
    """0 to group_world_size - 1."""
    first_rank: int
    """Global rank of the node's first worker."""
    local_world_size: int
    role: str
    first_role_rank: int
    role_world_size: int


@dataclass(frozen=True, slots=True)
class RoundHeader:
    """What all members of a round share; one object per round, however many members."""

    number: int
    run: int
    world_size: int
    group_world_size: int
    master_addr: str
    master_port: int
    restart_count: int
    reason: RoundReason
    epoch: int


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a round."""

    name: NodeName
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class FailedWorker:
    """A failed worker with its place."""

    name: NodeName
    rank: int
    exit: WorkerExit
    symptom: Symptom = Symptom.UNKNOWN
    host: str = ""
    """Name of its node's host; empty when the node did not say."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Workers of one round that failed alike."""

    key: tuple[str, str]
    """How they ended, and their error without what differs between them."""
    error: str
    """The error of the first of them, as it was said."""
    ranks: tuple[tuple[int, int], ...]
    """First and last rank of each range, ascending, with gaps between them."""
    count: int
    is_victim: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What failed first in a round, where and why."""

    cause: VerdictCause
    round: int
    name: NodeName | None
    """The node; None when it is about no single one."""
    text: str
    """The finding as one line, without the consequence."""
    culprit: FailedWorker | None = None
    collateral: tuple[FailedWorker, ...] = ()
    collateral_count: int = 0
    consequence: Consequence = Consequence.UNDECIDED
    repeats: int = 0
    """How often in a row the same early death has come; 0 for none."""
    groups: tuple[FailureGroup, ...] = ()
    """Everything that failed, alike folded into one; at most GROUPS_MAX."""
    evidence: str = ""
    """What makes it the culprit where the order of arrival does not."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A node that a round or a job has lost."""

    name: NodeName
    at_ms: int
    """When it broke off or, for a silent node, was last heard; else when it left."""
    reason: RoundReason
    """NODE_LOST, NODE_LEFT or DRAINED."""
    text: str
    """How, in words: "its stream broke", "it was silent for 5.0 s"."""


@dataclass(frozen=True, slots=True)
class Drain:
    """A node that wants to leave: its workers go on until they are done, or until it is time."""

    until_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Asked:
    """An agent that an operator has asked to leave."""

    name: NodeName
    session: SessionId
    drain: Drain


@dataclass(frozen=True, slots=True)
class NoticeOf:
    """What the workers of a round were told to expect."""

    name: NodeName | None
    """The node that leaves; None for growth."""
    until_ms: int
    """When it happens at the latest."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What a job knows of the health of a node, by its name: it outlives agents and runs."""

    name: NodeName
    failures_ms: tuple[int, ...] = ()
    """When the failures came that count towards the next quarantine, oldest first; fewer than
    `quarantine_after`."""
    quarantined_until_ms: int = 0
    """End of the latest quarantine, which may be over; 0 when there was none."""
    quarantines: int = 0
    cordoned: bool = False
    reason: str = ""
    """The operator's words for a cordon, else the latest failure."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A node whose workers may still run although no round waits for it."""

    session: SessionId
    name: NodeName
    until_ms: int
    """From then on they are dead."""


@dataclass(frozen=True, slots=True)
class Round:
    """The round that runs or is being stopped."""

    header: RoundHeader
    members: tuple[Member, ...]
    """By group rank, 0 first."""
    sealed_ms: int
    trouble_ms: int | None
    """When the event came that ended the round before; None for a first round."""
    started_ms: int | None = None
    """When the last member had started."""
    succeeded_gone: tuple[NodeName, ...] = ()
    """Members that succeeded and then were stopped or lost; they keep their success."""
    any_finished: bool = False
    """A worker has ended with 0: no growth from here on."""
    failures: tuple[FailedWorker, ...] = ()
    """In order of arrival, at most FAILURES_MAX; victims make room for others."""
    failure_count: int = 0
    failure_groups: tuple[FailureGroup, ...] = ()
    """All failures, alike folded into one, at most GROUPS_MAX."""
    first_failure_ms: int | None = None
    departures: tuple[Departure, ...] = ()
    """Members lost before they succeeded, each once, in order of arrival, at most LOST_MAX."""
    notices: tuple[NoticeOf, ...] = ()
    """What is about to happen, in the order in which it was announced, at most LOST_MAX."""
    told: tuple[NoticeOf, ...] = ()
    """What the members were told of it last."""
    drain_first_ms: int | None = None
    """When the time of the first draining member is over; None while none drains."""
    drain_last_ms: int = 0
    """When the time of the last one is."""
    drain_began: Departure | None = None
    """The first draining member of which a worker has ended: it explains failures of its peers."""
    overdue: tuple[NodeName, ...] = ()
    """Members that did not start in time, at most LOST_MAX; set when that stops the round."""
    refusal: tuple[NodeName, str] | None = None
    """The first member that could not start its workers, and its words."""
    stop_ms: int | None = None
    stop_reason: RoundReason | None = None


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """A round that has ended."""

    number: int
    began: RoundReason
    ended: RoundReason
    names: tuple[NodeName, ...]
    group_world_size: int
    world_size: int
    restart_count: int
    started_after_ms: int | None
    lasted_ms: int
    recovered_after_ms: int | None


@dataclass(frozen=True, slots=True)
class Job:
    """One job and its latest run. Holds nothing whose size grows with every message."""

    job_id: JobId
    run: int
    spec: JobSpec
    opened_ms: int
    phase: Phase = Phase.FORMING
    forming_since_ms: int = 0
    first_ready_ms: int | None = None
    """When min_nodes were first ready in this forming: the last call's limit counts from here."""
    last_arrival_ms: int = 0
    """When a node last became ready in this forming, or came while a round ran."""
    first_newcomer_ms: int | None = None
    """When the first node that a growth could take in came; the settle limit counts from here."""
    next_reason: RoundReason = RoundReason.FIRST
    """Why the round that is being formed begins."""
    trouble_ms: int | None = None
    """When the event came that made the round that is being formed necessary."""
    backoff_until_ms: int = 0
    round_number: int = 0
    """Highest round number given so far; only grows."""
    round: Round | None = None
    """Set exactly while RUNNING or STOPPING."""
    slots: tuple[NodeName, ...] = ()
    """Names by group rank of the latest round that was sealed."""
    restart_count: int = 0
    streak: int = 0
    """Charged failures in a row without progress."""
    crash_signature: str = ""
    crash_repeats: int = 0
    """How often in a row a round died young with the same `crash_signature`."""
    reformations: int = 0
    """Uncharged re-formations in a row without progress."""
    growths: int = 0
    """Growths in a row without progress; each doubles grow_after."""
    drains: int = 0
    """Rounds in a row that ended for a drain, without progress."""
    verdict: Verdict | None = None
    outcome: Outcome | None = None
    closed_ms: int | None = None
    history: tuple[RoundSummary, ...] = ()
    lost: tuple[Departure, ...] = ()
    asked: tuple[Asked, ...] = ()
    """Agents that an operator has asked to leave and that have not said goodbye, at most
    ASKED_MAX."""
    launch_id: str = ""
    health: tuple[NodeHealth, ...] = ()
    """Nodes that have failed or were set aside, by name, at most `health.HEALTH_MAX`."""
    next_arrival: int = 0
    deserted_ms: int | None = None
    """When the last node was lost; None while there is one."""
    fences: tuple[Fence, ...] = ()
    """Of all runs of the job, by age; empty without `--fence-after`."""
    blind_until_ms: int = 0
    """Before it, workers of nodes that nobody here knows may run; nothing lifts it."""
