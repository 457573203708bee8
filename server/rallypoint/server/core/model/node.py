"""What the coordinator knows of a node: its identity, its held round and its state.

Times are milliseconds of journal time.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.server.core.model.desired import Desired, Drain
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.round import Assignment, Milestone, RoundHeader
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.volatile import Volatile
from rallypoint.server.core.model.worker import WorkerExit


class NodeState(Enum):
    """What runs on a node, as far as the coordinator knows; the proto has the same states."""

    UNREADY = "unready"  # processes of an earlier round may still run there
    READY = "ready"  # clean, with a reserved port
    ASSIGNED = "assigned"  # it has a place in the round and has not reported Started
    STARTED = "started"
    SUCCEEDED = "succeeded"  # every local worker ended with 0, unprompted
    FAILED = "failed"  # a local worker failed; others may still run
    BLOCKED = "blocked"  # processes survived SIGKILL


class Eligibility(Enum):
    """Whether the health of a node lets rounds use it, whatever runs there."""

    ELIGIBLE = "eligible"
    QUARANTINED = "quarantined"  # only when fewer than min_nodes are left without it
    CORDONED = "cordoned"  # never


class HeldRound(Struct, frozen=True):
    """The round that an agent holds, as its Hello reports it."""

    header: RoundHeader
    assignment: Assignment
    state: NodeState
    """ASSIGNED, STARTED, SUCCEEDED, FAILED, UNREADY (stopping) or BLOCKED."""
    pids: tuple[int, ...]
    exits: tuple[WorkerExit, ...]
    start_failure: str = ""
    """Why a worker could not be started; empty when all could be."""
    worker_token: str = ""
    """The token of its workers."""
    milestones: tuple[tuple[Milestone, int], ...] = ()
    """Those that every worker of the node has reached, each with how long ago, in ms."""
    still_ms: int | None = None
    """Time since the latest progress of its workers; None: they make progress."""


class Program(Struct, frozen=True):
    """What the workers of a node run, and who started it."""

    name: str
    """Base name of the script or program, or `-m` and the name of the module; may be empty."""
    arguments_digest: str = ""
    command_line: str = ""
    """Cut, for readers. Like the user, it decides nothing."""
    user: str = ""
    may_differ: bool = False
    """Its operator allows other programs beside it."""
    worker_command: str = ""
    """How its agent starts a worker, without arguments; for readers of a verdict."""


class Identity(Struct, frozen=True):
    """What a node's Hello says about itself; fixed for the life of its agent."""

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
    """The host's own name. For people; it decides nothing."""
    program: Program | None = None
    """None: the agent did not say."""


class KnownAddresses(Struct, frozen=True):
    """The IP addresses of a node's latest Hello, all of one host: that of the coordinator."""

    of_coordinator: tuple[str, ...] = ()
    """As this node, on another host, knows it; it has connected to one of them. Empty: unknown."""
    own: tuple[str, ...] = ()
    """Of the node's own host; empty: the coordinator is elsewhere, or that is unknown."""


class Node(Struct, frozen=True):
    """An attached agent, or one whose stream broke and which may still reconnect."""

    identity: Identity
    name: NodeName
    """Unique in the job."""
    arrival: int = 0
    connection: Volatile[int] = 0
    attached: Volatile[bool] = True
    state: NodeState = NodeState.UNREADY
    member: bool = False
    """It has a place in the job's current round."""
    assignment: Assignment | None = None
    """Set exactly when `member`."""
    last_round: int = 0
    """Highest round that the agent was given."""
    port: Volatile[int] = 0
    """Reserved master port; set when READY."""
    set_aside: bool = False
    """It missed a deadline or cannot become clean; no wait counts it until it is READY again."""
    blocked_round: int = 0
    """Latest round whose processes survived SIGKILL here, so that a report that is sent again
    counts once; 0: none."""
    hindrance: str = ""
    """What keeps it from being ready, as its agent says; empty: nothing that it knows."""
    eligibility: Volatile[Eligibility] = Eligibility.ELIGIBLE
    """Eligibility by the health of its name, as of now."""
    acknowledged: Volatile[int] = 0
    """Highest report sequence applied."""
    pids: Volatile[tuple[int, ...]] = ()
    exits: Volatile[tuple[WorkerExit, ...]] = ()
    still_since_ms: Volatile[int | None] = None
    """When a worker of its round made progress last; None: they make progress, or none is known."""
    broke_ms: Volatile[int | None] = None
    """When its stream broke; None while attached."""
    is_heard: Volatile[bool] = False
    """Something has arrived after its Welcome, so its agent has the token to resume the session."""
    drain: Drain | None = None
    """Set once it drains; no later round has a place for it."""
    known_addresses: Volatile[KnownAddresses] = KnownAddresses()
    """Not journalled: a Hello to the next coordinator has others."""
    is_newcomer: bool = False
    """Its first Hello named no run: no earlier coordinator knew it."""
    missed_ms: int | None = None
    """When the coordinator has started without it, and it has not returned since: the first such
    start counts. None: it was connected when the last process of the coordinator ended."""
    held: Volatile[HeldRound | None] = None
    """Kept only while the coordinator may still adopt rounds."""
    revision: Volatile[int] = 0
    """Revision of the desired state; only grows."""
    desired: Volatile[Desired | None] = None
    """The desired state that was sent last; None before the first."""

    @property
    def session(self) -> SessionId:
        """The agent's incarnation."""
        return self.identity.session

    @property
    def job_id(self) -> JobId:
        """The job it belongs to."""
        return self.identity.job_id

    @property
    def is_awaited(self) -> bool:
        """True until its agent comes for the first time since the coordinator started again."""
        return self.connection == 0

    @property
    def is_clean(self) -> bool:
        """True when it is attached, runs nothing and does not drain."""
        return self.attached and self.state is NodeState.READY and self.drain is None

    @property
    def is_eligible(self) -> bool:
        """True when the next round may include it."""
        return self.is_clean and self.eligibility is Eligibility.ELIGIBLE

    @property
    def is_reserve(self) -> bool:
        """True when the next round may include it only if it is short of nodes."""
        return self.is_clean and self.eligibility is Eligibility.QUARANTINED

    @property
    def is_pending(self) -> bool:
        """True for a member that the end of a stop has to wait for."""
        if not self.member or self.set_aside:
            return False
        return self.state is not NodeState.READY or not self.attached
