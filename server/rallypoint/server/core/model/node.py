"""What the coordinator knows of a node: who it is, what it claims, and where it stands.

Frozen values, as in `model`; times are milliseconds of journal time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rallypoint.server.core.model import (
    Activity,
    Assignment,
    Bar,
    Drain,
    JobId,
    NodeName,
    RoundHeader,
    SessionId,
    WorkerExit,
)
from rallypoint.server.core.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Claim:
    """The round that an agent said, in its Hello, to hold."""

    header: RoundHeader
    assignment: Assignment
    activity: Activity
    """ASSIGNED, STARTED, SUCCEEDED, FAILED, UNREADY (stopping) or BLOCKED."""
    pids: tuple[int, ...]
    exits: tuple[WorkerExit, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a node says of itself in its Hello; fixed for the life of its agent."""

    job_id: JobId
    session: SessionId
    spec: JobSpec
    name: NodeName
    name_explicit: bool
    address: str
    local_world_size: int
    role: str = "default"
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted by key."""
    node_rank: int | None = None
    launch_id: str = ""
    host_name: str = ""
    """As the host calls itself: for people to read, decides nothing."""


class Node(NamedTuple):
    """One attached agent, or one whose stream broke and that may still come back.

    A named tuple, because nodes are what steps change most, and it is changed three times faster
    than a dataclass.
    """

    identity: Identity
    name: NodeName
    """Unique in the job."""
    arrival: int
    connection: int
    attached: bool = True
    activity: Activity = Activity.UNREADY
    member: bool = False
    """It has a place in the job's current round."""
    assignment: Assignment | None = None
    """Set exactly when `member`."""
    held_round: int = 0
    """Highest round that the agent was given."""
    port: int = 0
    """Reserved master port; set when READY."""
    set_aside: bool = False
    """It missed a deadline; nobody waits for it until it is READY again."""
    bar: Bar = Bar.NONE
    """What the job's health says of its name now."""
    acknowledged: int = 0
    """Highest report sequence taken."""
    pids: tuple[int, ...] = ()
    exits: tuple[WorkerExit, ...] = ()
    broke_ms: int | None = None
    """When its stream broke; None while attached."""
    drain: Drain | None = None
    """Set from the wish to leave on; no later round has a place for it."""
    claim: Claim | None = None
    """Kept only while the coordinator may still adopt rounds."""
    revision: int = 0
    """Of the desired state; only grows."""
    desired: object = None
    """The desired state last derived (`desired.Desired`); None before the first."""

    @property
    def session(self) -> SessionId:
        """The agent's incarnation."""
        return self.identity.session

    @property
    def job_id(self) -> JobId:
        """The job it belongs to."""
        return self.identity.job_id

    @property
    def is_clean(self) -> bool:
        """True when it is there to stay and nothing runs on it."""
        return self.attached and self.activity is Activity.READY and self.drain is None

    @property
    def is_eligible(self) -> bool:
        """True when the next round may take it."""
        return self.is_clean and self.bar is Bar.NONE

    @property
    def is_reserve(self) -> bool:
        """True when the next round may take it if it would have too few nodes without it."""
        return self.is_clean and self.bar is Bar.QUARANTINED

    @property
    def is_pending(self) -> bool:
        """True for a member that the end of a stop has to wait for."""
        if not self.member or self.set_aside:
            return False
        return self.activity is not Activity.READY or not self.attached
