"""Records of the journal: the facts that a coordinator could not learn again from its agents."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.base.ranges import Range
from rallypoint.server.core.events.log import Event
from rallypoint.server.core.keyspace.values import Answer, Change
from rallypoint.server.core.model.barrier import (
    Arrival,
    BarrierKey,
    Break,
    Expected,
    Participant,
)
from rallypoint.server.core.model.desired import Drain
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.job import (
    Counts,
    DrainRequest,
    Fence,
    Gone,
    Job,
    NodeHealth,
    RunSummary,
)
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import (
    Departure,
    Member,
    Notice,
    RoundHeader,
    RoundReason,
    RoundSummary,
    Timeline,
)
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, FailureGroup, Verdict
from rallypoint.server.core.model.worker import FailedWorker


class EpochRaised(Struct, frozen=True):
    """The coordinator sends this epoch from now on."""

    epoch: int
    resumed: bool = False
    """The coordinator has started again from its journal. Else a coordinator that remembers nothing
    has begun, or another one was at work before this epoch: what it decided is unknown."""
    window_until_ms: int | None = None
    """When the first window of this life closes, in journal time; 0: it has none. None: as
    before."""
    at_ms: int | None = None
    """When the coordinator has started again, in journal time: every known node is missed from then
    on, until it returns. None: it has not."""


class ClockMeasured(Struct, frozen=True):
    """What the wall clock says at a moment of journal time: one of them may have stood.

    Also written, while something waits, to keep the journal time that has passed.
    """

    at_ms: int
    """Journal time."""
    unix_ms: int
    """The same moment by the wall clock, as Unix time."""


class RunOpened(Struct, frozen=True):
    """A run began, or was taken over with the facts that its agents reported."""

    job_id: JobId
    run: int
    since_epoch: int
    spec: JobSpec
    launch_id: str
    round_number: int
    counts: Counts
    drain_requests: tuple[DrainRequest, ...] = ()
    updated: frozenset[str] = frozenset()
    spec_revision: int = 0
    operations: tuple[str, ...] = ()


def run_opened(job: Job) -> RunOpened:
    """Return the record of everything durable about a run that has no round yet."""
    return RunOpened(
        job.job_id,
        job.run,
        job.since_epoch,
        job.spec,
        job.launch_id,
        job.round_number,
        job.counts,
        job.drain_requests,
        job.updated,
        job.spec_revision,
        job.operations,
    )


class RoundSealed(Struct, frozen=True):
    """A round was sealed or adopted."""

    job_id: JobId
    header: RoundHeader
    members: tuple[Member, ...]


class RoundStopped(Struct, frozen=True):
    """The round was stopped everywhere; RoundSettled follows with the consequence."""

    job_id: JobId
    round: int
    reason: RoundReason
    note: str = ""
    """As `Round.stop_note`."""


class NodeSucceeded(Struct, frozen=True):
    """Every worker of the node ended with 0."""

    job_id: JobId
    round: int
    name: NodeName
    session: SessionId


class DrainRequested(Struct, frozen=True):
    """An operator requested the drain of a node."""

    job_id: JobId
    request: DrainRequest


class DrainRequestEnded(Struct, frozen=True):
    """The drain request for this name is over: its agent left, or another agent took the name."""

    job_id: JobId
    name: NodeName


class RoundSettled(Struct, frozen=True):
    """The end of a round was judged, and the run continues."""

    job_id: JobId
    round: int
    reason: RoundReason
    consequence: Consequence
    counts: Counts
    backoff_until_ms: int


class NodeHealthChanged(Struct, frozen=True):
    """A node failed, was set aside or was released."""

    job_id: JobId
    health: NodeHealth
    """Everything known about the node now; blank when nothing is."""


class RunClosed(Struct, frozen=True):
    """The run has its outcome."""

    job_id: JobId
    run: int
    outcome: Outcome
    verdict: Verdict | None


class JobForgotten(Struct, frozen=True):
    """A job was deleted, or dropped from memory to make room or because of its age."""

    job_id: JobId
    left: Gone | None = None
    """What is still remembered of it; None: nothing."""


class BarrierArrived(Struct, frozen=True):
    """A participant arrived at a barrier, or once more. The first one opens the generation."""

    key: BarrierKey
    generation: int
    expected: Expected | None
    """Of the first arrival; None in the others."""
    deadline_ms: int
    """When the generation is overdue, as of this arrival."""
    participant: Participant
    arrival: Arrival


class BarrierEnded(Struct, frozen=True):
    """The open generation was released, or has failed."""

    key: BarrierKey
    generation: int
    at_ms: int
    broken: Break | None
    """None: it was released."""


class BarrierDropped(Struct, frozen=True):
    """A barrier, or only how its generations ended, is not remembered any more."""

    key: BarrierKey
    only_ends: bool = False


class JobUpdated(Struct, frozen=True):
    """An operator changed the specification of the run."""

    job_id: JobId
    spec: JobSpec
    fields: frozenset[str]
    """All fields that operators have changed in this run."""
    revision: int
    """Revision of the job with this change."""


class PauseEnded(Struct, frozen=True):
    """An operator ended the pause before the next round."""

    job_id: JobId
    at_ms: int


class OperationDone(Struct, frozen=True):
    """An operator's request was carried out."""

    job_id: JobId
    request: str
    """Its id, and a digest of it."""


class KeysWritten(Struct, frozen=True):
    """A request to change keys of a run was answered."""

    job_id: JobId
    run: int
    since_epoch: int
    """Epoch since which the coordinator remembers the run."""
    round: int
    """Round of the worker that sent it."""
    changes: tuple[Change, ...]
    """In order."""
    request_id: str
    """The same for every attempt of the request; empty: there is only one."""
    answer: Answer


class KeysDropped(Struct, frozen=True):
    """A round or a run is over, and its keys are gone."""

    job_id: JobId
    run: int
    round: int = 0
    """0: the run is over."""


class EventsLogged(Struct, frozen=True):
    """What happened in a step, for readers."""

    events: tuple[Event, ...]
    """In order, with their numbers; never empty."""


class NodeJoined(Struct, frozen=True):
    """A node is known to the coordinator, or its identity or name is another now."""

    node: Node
    """Its durable facts; `reads.durable` says which those are."""


class NodeRemoved(Struct, frozen=True):
    """A node was lost, has left, or was displaced."""

    job_id: JobId
    session: SessionId


class NodeNoted(Struct, frozen=True):
    """Durable facts of a node as they are now, unless the other records imply them.

    `RoundSealed` makes its members members and gives them the round. `RoundSettled` and `RunClosed`
    end their membership. `NodeSucceeded` says that a node has succeeded.
    """

    job_id: JobId
    session: SessionId
    state: NodeState
    """SUCCEEDED while it is a member, BLOCKED, or UNREADY for any other."""
    member: bool
    last_round: int
    set_aside: bool
    blocked_round: int
    drain: Drain | None
    missed_ms: int | None = None
    """As in `Node`."""


class Splice(Struct, frozen=True):
    """How a list has changed: by what is kept of it, which precedes what the record adds."""

    field: str
    dropped: int
    """How many entries are dropped at its beginning."""
    kept: int
    """How many entries after those are kept. Everything that follows them is dropped too."""


class RoundChanges(Struct, frozen=True):
    """Facts of the job's round that have changed, and that no other record says.

    A field that is None or empty has not changed, but for the lists in `spliced` and the fields in
    `cleared`.
    """

    sealed_ms: int | None = None
    disrupted_ms: int | None = None
    started_ms: int | None = None
    succeeded_gone: tuple[NodeName, ...] = ()
    any_finished: bool | None = None
    failures: tuple[FailedWorker, ...] = ()
    failure_count: int | None = None
    failure_groups: tuple[FailureGroup, ...] = ()
    unlisted_ranks: tuple[Range, ...] = ()
    first_failure_ms: int | None = None
    departures: tuple[Departure, ...] = ()
    notices: tuple[Notice, ...] = ()
    drain_first_ms: int | None = None
    drain_last_ms: int | None = None
    drain_began: Departure | None = None
    overdue: tuple[NodeName, ...] = ()
    start_failure: tuple[NodeName, str, bool] | None = None
    held_token: str | None = None
    durable_step: int | None = None
    stop_ms: int | None = None
    timeline: Timeline | None = None
    spliced: tuple[Splice, ...] = ()
    """The lists that have changed; the fields hold only what is added at their ends."""
    cleared: tuple[str, ...] = ()
    """Fields that have their default values again."""


class JobChanges(Struct, frozen=True):
    """Facts of a job that have changed, and that no other record says; see `RoundChanges`."""

    opened_ms: int | None = None
    forming_since_ms: int | None = None
    disrupted_ms: int | None = None
    rounds_before: int | None = None
    verdict: Verdict | None = None
    closed_ms: int | None = None
    history: tuple[RoundSummary, ...] = ()
    runs: tuple[RunSummary, ...] = ()
    lost: tuple[Departure, ...] = ()
    next_arrival: int | None = None
    empty_since_ms: int | None = None
    fences: tuple[Fence, ...] = ()
    unknown_past_until_ms: int | None = None
    ended_round: Timeline | None = None
    round: RoundChanges | None = None
    spliced: tuple[Splice, ...] = ()
    cleared: tuple[str, ...] = ()


class JobNoted(Struct, frozen=True):
    """Facts of a job have changed in a turn; it follows the other records of the turn."""

    job_id: JobId
    changes: JobChanges


Record = (
    EpochRaised
    | ClockMeasured
    | RunOpened
    | RoundSealed
    | RoundStopped
    | NodeSucceeded
    | DrainRequested
    | DrainRequestEnded
    | RoundSettled
    | NodeHealthChanged
    | RunClosed
    | JobForgotten
    | BarrierArrived
    | BarrierEnded
    | BarrierDropped
    | KeysWritten
    | KeysDropped
    | JobUpdated
    | OperationDone
    | PauseEnded
    | EventsLogged
    | NodeJoined
    | NodeRemoved
    | NodeNoted
    | JobNoted
)
