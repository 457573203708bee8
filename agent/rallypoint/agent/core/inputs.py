"""What can happen to an agent, and what it does about it."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.agent.core.model import Desired, ErrorRecord, Notice, RunOrder


@dataclass(frozen=True, slots=True)
class Welcomed:
    """A coordinator answered the Hello."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The session broke."""


@dataclass(frozen=True, slots=True)
class Dismissed:
    """A coordinator refused this agent for good."""

    exit_code: int
    text: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Reports up to `sequence` have had their consequences journalled."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The coordinator has heard what was sent at `sent_ms`."""

    sent_ms: int


@dataclass(frozen=True, slots=True)
class DesiredCame:
    """The coordinator said what the node has to make true."""

    epoch: int
    revision: int
    desired: Desired


@dataclass(frozen=True, slots=True)
class PortReserved:
    """A port for the next round is reserved."""

    port: int


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker runs."""

    round: int
    local_rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerNotStarted:
    """The system did not start a worker."""

    round: int
    local_rank: int
    text: str


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker has ended."""

    round: int
    local_rank: int
    exit_code: int | None
    signal: int | None
    error: ErrorRecord | None
    stderr_tail: str
    ago_ms: int = 0
    """How long ago it was seen: reading its last words takes a moment."""
    oom_killed: bool = False
    """The kernel says that it killed the process for want of memory."""
    failed_ms: int | None = None
    """When it wrote its error down, else when it ended: Unix time, for people to read."""
    error_file: str = ""
    """Where it wrote its error down; empty when it did not."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Nothing that the workers started is left."""

    token: int


@dataclass(frozen=True, slots=True)
class SweepBlocked:
    """Some of it survives SIGKILL."""

    token: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """The agent got a signal that it handles."""

    signum: int


@dataclass(frozen=True, slots=True)
class NoticesCame:
    """The coordinator said what is about to happen; this takes the place of what it said before."""

    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing else happened."""


Input = (
    Welcomed
    | Disconnected
    | Dismissed
    | Acknowledged
    | Confirmed
    | DesiredCame
    | PortReserved
    | WorkerStarted
    | WorkerNotStarted
    | WorkerEnded
    | Swept
    | SweepBlocked
    | SignalReceived
    | NoticesCame
    | TimePassed
)


# --- Effects ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start the workers of this round, in rank order."""

    order: RunOrder


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """Signal the process group of every worker that lives."""

    signum: int


@dataclass(frozen=True, slots=True)
class ForwardSignal:
    """Signal every worker that lives, the process itself and not its group: it is to go on."""

    signum: int
    round: int | None
    """Of the workers; None when there are none that could hear it, so that this can be said."""


@dataclass(frozen=True, slots=True)
class TellWorkers:
    """Let the workers of this round find these notices, in place of earlier ones."""

    round: int
    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Kill everything that the workers started, until nothing is left."""

    token: int


@dataclass(frozen=True, slots=True)
class ArmFence:
    """Let everything that runs at this instant of the agent's clock be killed, unless it moves."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class FenceFell:
    """Say that the workers are stopped because no heartbeat was confirmed for so long."""

    round: int
    silent_ms: int


@dataclass(frozen=True, slots=True)
class ReservePort:
    """Reserve a port that was not offered before."""


@dataclass(frozen=True, slots=True)
class SendReports:
    """There is something to report."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Let the last reports out, then exit."""

    code: int
    text: str
    """Why, as one line; empty when there is nothing to say."""


Effect = (
    StartWorkers
    | SignalWorkers
    | ForwardSignal
    | TellWorkers
    | Sweep
    | ArmFence
    | FenceFell
    | ReservePort
    | SendReports
    | Exit
)
