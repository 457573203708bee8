"""What can happen to an agent."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.agent.core.desired import Desired, DesiredDrain, Notice
from rallypoint.agent.core.held_round import ErrorRecord, Milestone


class Welcomed(Struct, frozen=True):
    """A coordinator answered the Hello."""

    epoch: int


class Disconnected(Struct, frozen=True):
    """The session broke."""


class Dismissed(Struct, frozen=True):
    """A coordinator refused this agent for good."""

    exit_code: int
    text: str


class Acknowledged(Struct, frozen=True):
    """The coordinator has recorded the consequences of all reports up to `sequence`."""

    sequence: int


class Confirmed(Struct, frozen=True):
    """The coordinator has received a message sent at `sent_ms`."""

    sent_ms: int


class DesiredReceived(Struct, frozen=True):
    """The coordinator sent a desired state."""

    epoch: int
    revision: int
    desired: Desired
    drain: DesiredDrain | None = None
    """Set when the node has to leave the job."""


class PortReserved(Struct, frozen=True):
    """A port for the next round is reserved."""

    port: int


class PortNotReserved(Struct, frozen=True):
    """No port for the next round could be reserved."""

    text: str
    """Why."""


class WorkerStarted(Struct, frozen=True):
    """A worker was started."""

    round: int
    local_rank: int
    pid: int


class WorkerNotStarted(Struct, frozen=True):
    """The system did not start a worker."""

    round: int
    local_rank: int
    text: str
    is_missing: bool = False
    """Its program or folder is missing or cannot be used."""


class WorkersNotPrepared(Struct, frozen=True):
    """The node cannot make the folders and files of a round: no worker was started."""

    round: int
    text: str
    """Why."""


class MilestoneReached(Struct, frozen=True):
    """A worker says that it has reached a milestone. All of it may be wrong."""

    round: int
    local_rank: int
    milestone: Milestone
    at_ms: int
    """When, by the agent's clock."""


class ProgressSeen(Struct, frozen=True):
    """The workers of a round stand still, or one of them makes progress again."""

    round: int
    still_since_ms: int | None
    """When the latest progress of any of them was made, by the agent's clock; None: they make
    progress."""


class WorkerRecorded(Struct, frozen=True):
    """A running worker has recorded an error."""

    round: int
    local_rank: int
    error: ErrorRecord
    """With its age when it was found."""
    stderr_tail: str
    at_ms: int | None = None
    """When it was found, by the agent's clock; None: now."""
    failed_ms: int | None = None
    """When it was recorded: Unix time, for people to read."""
    error_file: str = ""
    stderr_file: str = ""
    """File with its standard error; empty when there is none."""


class WorkerEnded(Struct, frozen=True):
    """A worker has ended."""

    round: int
    local_rank: int
    exit_code: int | None
    signal: int | None
    error: ErrorRecord | None
    stderr_tail: str
    at_ms: int | None = None
    """When it ended, by the agent's clock; None: now. The report may come later."""
    oom_killed: bool = False
    """The kernel's OOM killer ended the process."""
    failed_ms: int | None = None
    """When it recorded its error, else when it ended: Unix time, for people to read."""
    error_file: str = ""
    """Its error file; empty when it wrote none."""
    stderr_file: str = ""
    """File with its standard error; empty when there is none."""
    signalled_ms: int | None = None
    """When it was first signalled to stop or to drain, by the agent's clock; None: it was not."""


class Swept(Struct, frozen=True):
    """No process of the workers is left."""

    token: int


class SweepBlocked(Struct, frozen=True):
    """Some processes of the workers survived SIGKILL."""

    token: int
    pids: tuple[int, ...]


class HelperSilent(Struct, frozen=True):
    """The helper process does not answer."""

    pid: int


class HelperAnswered(Struct, frozen=True):
    """It answers again, or another one has taken its place."""


class SignalReceived(Struct, frozen=True):
    """The agent got a signal that it handles."""

    signum: int


class NoticesReceived(Struct, frozen=True):
    """The coordinator sent its notices; they replace all earlier ones."""

    notices: tuple[Notice, ...]


class RoundGivenUp(Struct, frozen=True):
    """The launcher of the workers stops this round by itself; the node stays in the job."""

    round: int
    text: str
    """Why, as one line."""


class LeaveRequested(Struct, frozen=True):
    """The program that embeds the agent leaves the job."""

    exit_code: int
    text: str
    """Why, as one line."""


class AgentFailed(Struct, frozen=True):
    """The agent found a bug in itself: it stops its workers and ends."""

    text: str
    """The exception, one line."""


class TimePassed(Struct, frozen=True):
    """A deadline may have expired."""


Input = (
    Welcomed
    | Disconnected
    | Dismissed
    | Acknowledged
    | Confirmed
    | DesiredReceived
    | PortReserved
    | PortNotReserved
    | WorkerStarted
    | WorkerNotStarted
    | WorkersNotPrepared
    | MilestoneReached
    | ProgressSeen
    | WorkerRecorded
    | WorkerEnded
    | Swept
    | SweepBlocked
    | HelperSilent
    | HelperAnswered
    | SignalReceived
    | NoticesReceived
    | RoundGivenUp
    | LeaveRequested
    | AgentFailed
    | TimePassed
)
