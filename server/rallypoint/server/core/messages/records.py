"""Records of the journal: the facts that a coordinator could not learn again from its agents."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from rallypoint.server.core.model.barrier import (
    Arrival,
    BarrierKey,
    Break,
    Expected,
    Participant,
)
from rallypoint.server.core.model.events import Event
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.job import Gone, Job
from rallypoint.server.core.model.keyspace import Answer, Change
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.model.round import Round


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
    """A node is known to the coordinator."""

    node: Node
    """Its durable facts."""


class NodeRemoved(Struct, frozen=True):
    """A node was lost, has left, or was displaced."""

    job_id: JobId
    session: SessionId


class NodeNoted(Struct, frozen=True):
    """Facts of a node have changed in a turn; see `memory.notes`."""

    job_id: JobId
    session: SessionId
    values: Annotated[dict[str, Any], Node] = {}
    """The new value of each fact that has changed, by its name."""
    cleared: tuple[str, ...] = ()
    """Facts that have their default values again."""


class Splice(Struct, frozen=True):
    """How a list has changed: between what is kept of it stands the value of the record."""

    field: str
    dropped: int
    """How many entries are dropped at its beginning."""
    kept: int
    """How many entries after those are kept."""
    tail: int
    """How many entries at its end are kept. Those between are dropped."""


class RoundChanges(Struct, frozen=True):
    """Facts of the job's round that have changed."""

    values: Annotated[dict[str, Any], Round] = {}
    """The new value of each, by its name; of a list in `spliced` only what is new."""
    cleared: tuple[str, ...] = ()
    """Those that have their default values again."""
    spliced: tuple[Splice, ...] = ()
    aged_ms: int = 0
    """By how much all known failures have become older, before they change otherwise."""


class JobChanges(Struct, frozen=True):
    """Facts of a job that have changed, as in `RoundChanges`."""

    values: Annotated[dict[str, Any], Job] = {}
    cleared: tuple[str, ...] = ()
    spliced: tuple[Splice, ...] = ()
    round: RoundChanges | None = None
    """Of its round, if that is still the same; a new round is a value, one that ends is cleared."""


class JobNoted(Struct, frozen=True):
    """Facts of a job have changed in a turn; see `memory.notes`."""

    job_id: JobId
    changes: JobChanges


Record = (
    EpochRaised
    | ClockMeasured
    | JobForgotten
    | BarrierArrived
    | BarrierEnded
    | BarrierDropped
    | KeysWritten
    | KeysDropped
    | EventsLogged
    | NodeJoined
    | NodeRemoved
    | NodeNoted
    | JobNoted
)
