"""What an agent has to do after a step, in order."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.agent.core.desired import Notice, RunOrder


class StartWorkers(Struct, frozen=True):
    """Start the workers of this round, in rank order."""

    order: RunOrder


class SignalWorkers(Struct, frozen=True):
    """Signal the process group of every worker once; those that still start get it as they run."""

    signum: int


class ForwardSignal(Struct, frozen=True):
    """Signal the process of every live worker, not its group, because the worker keeps running."""

    signum: int
    round: int | None
    """Round of the workers; None when there are none, so that the shell can log it."""


class WriteNotices(Struct, frozen=True):
    """Replace the content of this round's notice file by these notices."""

    round: int
    notices: tuple[Notice, ...]


class Sweep(Struct, frozen=True):
    """Kill everything that the workers started, until nothing is left."""

    token: int


class LogSurvivors(Struct, frozen=True):
    """Log where the workers stand that have not ended since the stop signal."""

    within_ms: int
    """How long it is until SIGKILL, which does not wait for this."""


class ArmFence(Struct, frozen=True):
    """Make the helper kill everything at `at_ms` of the agent's clock, not at an earlier time."""

    at_ms: int


class LogFence(Struct, frozen=True):
    """Log that the fence stops the workers because no heartbeat was confirmed for this long."""

    round: int
    unconfirmed_ms: int


class LogDropped(Struct, frozen=True):
    """Log that word of a worker is dropped, because the node does not hold its round."""

    round: int
    local_rank: int
    what: str
    """What became of the worker."""


class LogOutcomeAwaited(Struct, frozen=True):
    """Log that all workers exited with 0 and only a coordinator's confirmation is missing."""

    within_ms: int
    """How long the agent waits for it."""


class ReservePort(Struct, frozen=True):
    """Reserve a port that was not offered before."""

    checks_files: bool = False
    """Before that, find out whether the folders and files of a round can be made again."""


class SendReports(Struct, frozen=True):
    """Send the unsent reports."""


class Exit(Struct, frozen=True):
    """Send the last reports, then exit."""

    code: int
    text: str
    """Why, as one line; may be empty."""


Effect = (
    StartWorkers
    | SignalWorkers
    | ForwardSignal
    | WriteNotices
    | Sweep
    | LogSurvivors
    | ArmFence
    | LogFence
    | LogDropped
    | LogOutcomeAwaited
    | ReservePort
    | SendReports
    | Exit
)
