"""Everything that an agent knows. Times are milliseconds of the agent's monotonic clock."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.agent.core.desired import Desired, DesiredDrain, Notice
from rallypoint.agent.core.held_round import HeldRound
from rallypoint.agent.core.reports import GoodbyeKind, Report


class Ending(Struct, frozen=True):
    """How the agent ends, once it is decided."""

    exit_code: int
    kind: GoodbyeKind
    text: str
    goodbye_sent: bool = False
    """Goodbye was reported; only the exit remains."""


class Drain(Struct, frozen=True):
    """The node is about to leave: its workers run until they are done or until `until_ms`.

    An exit during a drain is neither success nor failure: the worker has left.
    """

    until_ms: int
    reason: str
    ending: Ending
    """How the agent ends after the drain."""


class PortWait(Struct, frozen=True):
    """The node tries again and again to reserve a port; without one it cannot be ready."""

    since_ms: int
    attempts: int
    """Failed attempts, and rounds before them whose files could not be made."""
    retry_ms: int | None
    """When the next attempt is due; None while it is made."""
    text: str
    """Why the last attempt failed."""


class AgentState(Struct, frozen=True):
    """Everything that an agent knows."""

    workers: int
    """Workers that the node starts."""
    shutdown_timeout_ms: int
    """Between a stop signal that the agent itself decides on and SIGKILL."""
    coordinator_timeout_ms: int
    """How long an agent without running workers waits for a coordinator."""
    away_since_ms: int | None
    """When the session was lost; None while there is one."""
    outcome_timeout_ms: int = 300_000
    """How long an agent whose workers all exited with 0 waits for a coordinator to confirm that."""
    drain_ms: int = 0
    """How long workers may run after a SIGTERM to the agent; 0 stops them at once."""
    drain_signal: int | None = None
    """The signal that workers get when the node drains; None: they only find the notice."""
    fence_ms: int = 0
    """How long after the last confirmed heartbeat workers may live; 0: without a limit."""
    confirmed_ms: int | None = None
    """When the last answered heartbeat or Hello was sent; None before the first."""
    held: HeldRound | None = None
    unheard: HeldRound | None = None
    """The round that was held last, until the coordinator has recorded how its workers ended."""
    last_round: int = 0
    """Highest round that was started here, or stopped before its start here."""
    port: int = 0
    """Reserved for the next round; 0 while the node is not clean."""
    port_wait: PortWait | None = None
    """Set while no port can be reserved, or no files can be made."""
    unprepared: str = ""
    """Why the files of the last round could not be made; empty: they could, or can again."""
    has_started: bool = False
    """A round's workers have all been started here, so their program and folder were there."""
    unprepared_rounds: int = 0
    """How many rounds could not be prepared since one was started."""
    desired: Desired | None = None
    """The newest desired state; None before the first."""
    desired_drain: DesiredDrain | None = None
    """Set when the newest desired state says that the node has to leave the job."""
    revision: int = 0
    """Revision of `desired`."""
    epoch: int = 0
    """Highest epoch seen."""
    reports: tuple[Report, ...] = ()
    """Unacknowledged reports, oldest first. One round bounds their number, because no round begins
    without a coordinator."""
    acknowledged: int = 0
    """Sequence of the last acknowledged report; the first of `reports` has the next one."""
    drain: Drain | None = None
    """Set from the start of a drain; the ending follows."""
    notices: tuple[Notice, ...] = ()
    """The coordinator's latest notices."""
    ending: Ending | None = None
    silent_helper: int = 0
    """Process id of the helper while it does not answer; else 0."""
    sweep_token: int = 0
    """Token of the last sweep that was requested."""
