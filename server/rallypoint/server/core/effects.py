"""What the shell has to do after a step, and the records that it journals first.

Order: all records of a turn are appended; only when that has returned are the effects of the turn
carried out, in their order. No effect is visible before its reason is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from rallypoint.server.core.model import (
    Asked,
    Consequence,
    Job,
    JobId,
    JobSpec,
    Member,
    NodeHealth,
    NodeName,
    NoticeOf,
    Outcome,
    RoundHeader,
    RoundReason,
    SessionId,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class DesiredRun:
    """Exactly these workers run."""

    header: RoundHeader
    assignment: object
    """An `Assignment`."""
    max_restarts: int


@dataclass(frozen=True, slots=True)
class DesiredStop:
    """Nothing of this round runs."""

    round: int
    reason: RoundReason
    grace_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class DesiredStandby:
    """Attached, and nothing runs."""

    spare: bool


@dataclass(frozen=True, slots=True)
class DesiredFinished:
    """The run has ended."""

    outcome: Outcome
    verdict: Verdict | None
    restart_count: int
    round: int


@dataclass(frozen=True, slots=True)
class DesiredReleased:
    """The session is over: the node was drained."""

    text: str


Desired = DesiredRun | DesiredStop | DesiredStandby | DesiredReleased | DesiredFinished


class RefusalKind(Enum):
    """Why a Hello, a report or a request was refused; `rpc/errors.py` maps each to a status."""

    SPEC_MISMATCH = "spec mismatch"
    NODE_NAME_IN_USE = "node name in use"
    NODE_RANK_IN_USE = "node rank in use"
    ADDRESS_MISMATCH = "address mismatch"
    PREVIOUS_RUN_ENDING = "previous run ending"
    OLD_RUN = "old run"
    STALE_CONNECTION = "stale connection"
    STALE_EPOCH = "stale epoch"
    FOREIGN_ROUND = "foreign round"
    UNKNOWN_SESSION = "unknown session"
    SEQUENCE_GAP = "sequence gap"
    LIMIT_REACHED = "limit reached"
    UNKNOWN_JOB = "unknown job"
    UNKNOWN_NODE = "unknown node"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused input: the kind and the facts that its detail message carries, never prose."""

    kind: RefusalKind
    facts: tuple[tuple[str, str | int], ...] = ()
    """Named values, in the order of the detail message's fields."""
    differences: tuple[tuple[str, str, str], ...] = ()
    """For SPEC_MISMATCH: (field, expected, actual)."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer the Hello of this connection."""

    session: SessionId
    connection: int
    name: NodeName
    run: int


class Send(NamedTuple):
    """Tell the node its desired state; a newer one may replace it before it is sent.

    A named tuple, as there is one for every node and round: made in a third of a dataclass's time.
    """

    session: SessionId
    revision: int
    desired: Desired


class Acknowledge(NamedTuple):
    """The report with this sequence has had its consequences journalled."""

    session: SessionId
    sequence: int


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell the node what is about to happen, in place of what it was told before."""

    session: SessionId
    notices: tuple[tuple[NoticeOf, int], ...]
    """Each with the time until it happens at the latest, in ms."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """End this connection with the status of the refusal."""

    session: SessionId
    connection: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Disconnect:
    """End whatever connection this session has: it was lost or superseded."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class JobChanged:
    """Readers of this job have something new to see."""

    job_id: JobId
    reason: str
    """A constant past-tense event name for the log."""
    facts: tuple[tuple[str, str | int], ...] = ()
    """What the log says about it."""


Effect = Welcome | Send | Acknowledge | Notify | Refuse | Disconnect | JobChanged


# Records: what a coordinator without memory could not learn again from its agents.


@dataclass(frozen=True, slots=True)
class EpochRaised:
    """The coordinator speaks with this epoch from here on."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RunOpened:
    """A run began, or was taken over with what its agents told of it."""

    job_id: JobId
    run: int
    spec: JobSpec
    launch_id: str
    round_number: int
    restart_count: int
    asked: tuple[Asked, ...] = ()


def run_opened(job: Job) -> RunOpened:
    """Return the record that stands for everything durable about a run without rounds so far."""
    return RunOpened(
        job.job_id,
        job.run,
        job.spec,
        job.launch_id,
        job.round_number,
        job.restart_count,
        job.asked,
    )


@dataclass(frozen=True, slots=True)
class RoundSealed:
    """A round was sealed or adopted."""

    job_id: JobId
    header: RoundHeader
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class RoundStopped:
    """The round was stopped everywhere; what follows is decided by RoundSettled."""

    job_id: JobId
    round: int
    reason: RoundReason


@dataclass(frozen=True, slots=True)
class NodeSucceeded:
    """Every worker of the node ended with 0."""

    job_id: JobId
    round: int
    name: NodeName


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """An operator has asked a node to leave."""

    job_id: JobId
    asked: Asked


@dataclass(frozen=True, slots=True)
class DrainOver:
    """What was asked of the agent of this name is over: it has left, or another one has come."""

    job_id: JobId
    name: NodeName


@dataclass(frozen=True, slots=True)
class RoundSettled:
    """What the end of a round means for the run that goes on."""

    job_id: JobId
    round: int
    reason: RoundReason
    consequence: Consequence
    restart_count: int
    streak: int
    crash_signature: str
    crash_repeats: int
    reformations: int
    growths: int
    drains: int
    backoff_until_ms: int


@dataclass(frozen=True, slots=True)
class NodeHealthChanged:
    """A node failed, was set aside or taken back."""

    job_id: JobId
    health: NodeHealth
    """All that is known of it now; blank when nothing is."""


@dataclass(frozen=True, slots=True)
class RunClosed:
    """The run has its outcome."""

    job_id: JobId
    run: int
    outcome: Outcome
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class JobForgotten:
    """An ended job was dropped from memory, to make room or for its age."""

    job_id: JobId


Record = (
    EpochRaised
    | RunOpened
    | RoundSealed
    | RoundStopped
    | NodeSucceeded
    | DrainAsked
    | DrainOver
    | RoundSettled
    | NodeHealthChanged
    | RunClosed
    | JobForgotten
)
