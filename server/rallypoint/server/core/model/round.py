"""A round: its members and their ranks, and everything that happens to it until it ends."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.base.ranges import Range
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.verdict import FailureGroup, Verdict
from rallypoint.server.core.model.volatile import Volatile
from rallypoint.server.core.model.worker import FailedWorker

FAILURES_MAX = 16
"""Failed workers of a round that are kept with their output; later ones are only counted."""
LOST_MAX = 16
"""Lost nodes that a job remembers for its explanations."""


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
    RESTART_REQUESTED = "restart requested"
    RESIZED = "resized"
    HUNG = "hung"


REQUESTED = frozenset({RoundReason.RESTART_REQUESTED, RoundReason.RESIZED})
"""An operator stopped the round. It costs nothing."""
PLANNED = frozenset({RoundReason.GROWTH, RoundReason.DRAINED}) | REQUESTED
"""A round that is stopped for these has not failed, and may still succeed."""
LEAVING = frozenset({RoundReason.NODE_LEFT, RoundReason.DRAINED})
"""Reasons of departures that were on purpose."""


def describe_request(what: str, note: str) -> str:
    """Return what an operator does, with the reason for it, if there is one."""
    return f"{what}: {note}" if note else what


class Assignment(Struct, frozen=True):
    """A node's place in a round."""

    group_rank: int
    """0 to group_world_size - 1."""
    first_rank: int
    """Global rank of the node's first worker."""
    local_world_size: int
    role: str
    first_role_rank: int
    role_world_size: int


class RoundHeader(Struct, frozen=True):
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


class Member(Struct, frozen=True):
    """One member of a round."""

    name: NodeName
    assignment: Assignment


class Departure(Struct, frozen=True):
    """A node that left or was lost."""

    name: NodeName
    at_ms: int
    """When its stream broke or, for a silent node, when it was last heard; else when it left."""
    reason: RoundReason
    """NODE_LOST, NODE_LEFT or DRAINED."""
    text: str
    """How, in words: "its stream broke", "it was silent for 5.0 s"."""
    has_finished: bool = False
    """It left because its run had ended."""


class Notice(Struct, frozen=True):
    """An event that is about to happen to a round; its workers are notified."""

    name: NodeName | None
    """The node that leaves; None for growth."""
    until_ms: int
    """When it happens at the latest."""
    reason: str = ""


class Milestone(Enum):
    """How far a worker has come before its first step."""

    IMPORTED = "imported"
    PROCESS_GROUP = "process group"


class Timeline(Struct, frozen=True):
    """How a round came into being, as moments of journal time; None: not known.

    `detected_ms` to `swept_ms` are about the end of the round before.
    """

    origin_ms: int
    """The first failure, or the decision to stop the round before; for a first round, when the run
    was opened."""
    detected_ms: int | None = None
    """The coordinator learnt of the first failure; None when nothing failed."""
    told_ms: int | None = None
    """It ordered the stop."""
    stopped_ms: int | None = None
    """The last worker ended, of those that were reported."""
    swept_ms: int | None = None
    """The last member was clean, lost or given up."""
    sealed_ms: int | None = None
    started_ms: int | None = None
    imported_ms: int | None = None
    """The last worker had finished its imports; None until every worker has reported it."""
    process_group_ms: int | None = None
    """The same of its process group."""
    first_step_ms: int | None = None
    """A worker first reported progress."""


class Reached(Struct, frozen=True):
    """The workers of a round that have reached a milestone."""

    ranks: int = 0
    """A bit per rank."""
    latest_ms: int = 0
    """When the last of them did."""


class Hang(Struct, frozen=True):
    """A suspicion that a round hangs: no worker makes progress."""

    since_ms: int
    """When the latest progress of any worker was made."""
    suspected_ms: int
    """When the suspicion began."""
    is_examined: bool = False
    """The evidence has come, or does not come any more."""
    is_conclusive: bool = False
    """It shows that the workers wait for something that does not come."""
    rank: int | None = None
    """The rank that the others wait for; None: none is known."""
    name: NodeName = NodeName("")
    """Its node; empty: none is known."""
    text: str = ""
    """What the evidence says, as one line."""


class Round(Struct, frozen=True):
    """The round that runs or is being stopped."""

    header: RoundHeader
    members: tuple[Member, ...]
    """By group rank, 0 first."""
    sealed_ms: int = 0
    disrupted_ms: int | None = None
    """When the event happened that ended the previous round; None for a first round."""
    started_ms: int | None = None
    """When the last member had started."""
    succeeded_gone: tuple[NodeName, ...] = ()
    """Members that succeeded and then were stopped or lost; they keep their success."""
    any_finished: bool = False
    """A worker has exited with 0, so the round does not grow any more."""
    failures: tuple[FailedWorker, ...] = ()
    """In order of arrival, at most FAILURES_MAX; victims make room for others."""
    failure_count: int = 0
    failure_groups: tuple[FailureGroup, ...] = ()
    """All failures, equal ones folded into one group, at most GROUPS_MAX."""
    unlisted_ranks: tuple[Range, ...] = ()
    """Ranks of workers that have failed and that no group shows, so that each counts once."""
    first_failure_ms: int | None = None
    departures: tuple[Departure, ...] = ()
    """Members lost before they succeeded, each once, in order of arrival, at most LOST_MAX."""
    unlisted_departures: int = 0
    """Further members that were lost or left."""
    notices: tuple[Notice, ...] = ()
    """Events about to happen, in the order of their announcement, at most LOST_MAX."""
    notices_sent: Volatile[tuple[Notice, ...]] = ()
    """The notices that were sent to the members last."""
    drain_first_ms: int | None = None
    """When the drain time of the first draining member ends; None while none drains."""
    drain_last_ms: int = 0
    """When the drain time of the last one ends."""
    drain_began: Departure | None = None
    """The first draining member whose worker has ended: it explains failures of its peers."""
    overdue: tuple[NodeName, ...] = ()
    """Members that did not start in time, at most LOST_MAX; set when that stops the round."""
    start_failure: tuple[NodeName, str, bool] | None = None
    """The first member that could not start its workers, why, and if no restart cures it there."""
    held_token: str = ""
    """The token of its workers, if an earlier coordinator without a journal has made it."""
    step: Volatile[int] = 0
    """Highest step that a worker of the round has reported; 0: none."""
    step_ms: Volatile[int | None] = None
    """When it was reached; None: there is none, or an earlier coordinator knew."""
    step_gap_ms: Volatile[int | None] = None
    """Usual time between two reports of higher steps; None before the second one."""
    durable_step: int = 0
    """The same as of the last time that it was journalled; see `rounds.progress`."""
    stop_ms: int | None = None
    stop_reason: RoundReason | None = None
    stop_note: str = ""
    """Why an operator has stopped it; empty: none has, or none gave a reason."""
    timeline: Timeline | None = None
    """How it came into being; None when it was adopted."""
    hang: Hang | None = None
    """Set while it is suspected to hang, or a collective has timed out, and kept at the stop for
    that."""
    taken_over_ms: Volatile[int | None] = None
    """When this coordinator took the round over from an earlier one, or from its own earlier life;
    None: it has heard of every step."""
    reached_at: Volatile[tuple[str, ...]] = ()
    """Where other members have reached the host of the first, if not all at its own address. It is
    not journalled: only a log line has it."""
    last_exit_ms: Volatile[int | None] = None
    """When the last worker ended, of those that were reported."""
    imported: Volatile[Reached] = Reached()
    """Dropped once every worker has, like `process_group`."""
    process_group: Volatile[Reached] = Reached()


class RoundSummary(Struct, frozen=True):
    """A round that has ended."""

    run: int
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
    began_ms: int
    """When it was sealed, in journal time."""
    ended_ms: int
    """When it was stopped or succeeded."""
    verdict: Verdict | None = None
    """What failed in it, without the output of its workers; None when nothing did."""
    timeline: Timeline | None = None
    """How it came into being; None when it was adopted."""
    stop_note: str = ""
    """As `Round.stop_note`."""
