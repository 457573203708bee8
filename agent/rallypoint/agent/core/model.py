"""The words of the agent's core. Times are milliseconds of the agent's monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class RunOrder:
    """A round and this node's place in it, as the coordinator ordered it."""

    number: int
    run: int
    world_size: int
    group_world_size: int
    master_addr: str
    master_port: int
    restart_count: int
    reason: int
    """The wire's number for why the round began; only carried back in a Hello."""
    epoch: int
    group_rank: int
    first_rank: int
    local_world_size: int
    role: str
    first_role_rank: int
    role_world_size: int
    max_restarts: int


@dataclass(frozen=True, slots=True)
class DesiredRun:
    """Exactly these workers run."""

    order: RunOrder


@dataclass(frozen=True, slots=True)
class DesiredStop:
    """Nothing of this round or an earlier one runs."""

    round: int
    grace_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class DesiredStandby:
    """Nothing runs."""

    spare: bool


@dataclass(frozen=True, slots=True)
class DesiredEnd:
    """Nothing runs, and the agent exits."""

    exit_code: int
    text: str
    """Why, as one line."""
    is_release: bool = False
    """The run goes on without this node."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that is about to happen to the round; its workers may want to know."""

    kind: str
    """"growth" or "drain"."""
    node: str
    """The node that leaves; empty for growth, and when it is this one."""
    reason: str
    until_ms: int
    """When it happens at the latest."""
    is_here: bool = False
    """It is this node that leaves."""


Desired = DesiredRun | DesiredStop | DesiredStandby | DesiredEnd


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """What a worker wrote into its error file."""

    message: str
    traceback: str
    before_exit_ms: int | None
    time_s: int | None = None
    """When it was written by its own account, as Unix time; None when it does not say."""


@dataclass(frozen=True, slots=True)
class LocalExit:
    """How a worker ended. Exactly one of `exit_code` and `signal` is set."""

    exit_code: int | None
    signal: int | None
    at_ms: int
    signalled_first: bool
    """The agent had signalled it before it ended."""
    error: ErrorRecord | None
    stderr_tail: str
    signalled_before_ms: int | None = None
    """How long before its end the agent had signalled it; None when it had not."""
    oom_killed: bool = False
    """The kernel says that it killed the process for want of memory."""
    failed_ms: int | None = None
    """When it wrote its error down, else when it ended: Unix time, for people to read."""
    error_file: str = ""
    """Where it wrote its error down; empty when it did not."""

    @property
    def is_failure(self) -> bool:
        """True for an end that nobody asked for and that is not a success."""
        return self.exit_code != 0 and (self.has_recorded_first or not self.signalled_first)

    @property
    def has_recorded_first(self) -> bool:
        """True when the worker had written down its error before the agent signalled it."""
        if self.error is None or self.error.before_exit_ms is None:
            return False
        signalled_ms = self.signalled_before_ms
        return signalled_ms is not None and self.error.before_exit_ms > signalled_ms


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """One worker of the round that the node holds."""

    local_rank: int
    pid: int = 0
    """0 until it is started."""
    started_ms: int = 0
    exit: LocalExit | None = None


class Stage(Enum):
    """Where the round that the node holds stands."""

    STARTING = "starting"  # not every worker has been started
    RUNNING = "running"  # every worker was started; some may have ended
    SUCCEEDED = "succeeded"  # every worker ended with 0, unprompted
    FAILED = "failed"  # a worker failed, or could not be started
    STOPPING = "stopping"  # workers were signalled, and have until the grace ends
    SWEEPING = "sweeping"  # everything that is left is being killed
    BLOCKED = "blocked"  # some of it survived
    CLEAN = "clean"  # nothing is left; a port for the next round is being reserved


STOPPING_STAGES = frozenset({Stage.STOPPING, Stage.SWEEPING, Stage.BLOCKED, Stage.CLEAN})


@dataclass(frozen=True, slots=True)
class Held:
    """The round that the node holds."""

    order: RunOrder
    workers: tuple[LocalWorker, ...]
    """By local rank."""
    stage: Stage = Stage.STARTING
    kill_ms: int | None = None
    """When the grace ends; set while STOPPING."""
    signalled_ms: int | None = None
    """When the workers were told to stop, or that their node drains; None before that."""

    @property
    def is_running(self) -> bool:
        """True while a worker lives and none was told to stop."""
        if self.stage in STOPPING_STAGES:
            return False
        return any(worker.exit is None for worker in self.workers)


# --- Reports, in the words of the contract ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """Nothing of `round` or an earlier one runs here."""

    round: int
    port: int


@dataclass(frozen=True, slots=True)
class StartedReport:
    """All local workers were started."""

    round: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RefusedReport:
    """The round is not run here, or no longer."""

    round: int
    leaving: bool
    text: str


@dataclass(frozen=True, slots=True)
class ExitedReport:
    """A worker ended."""

    round: int
    worker: LocalWorker


@dataclass(frozen=True, slots=True)
class SucceededReport:
    """Every local worker ended with 0."""

    round: int


@dataclass(frozen=True, slots=True)
class BlockedReport:
    """Processes survived SIGKILL."""

    round: int
    pids: tuple[int, ...]


class GoodbyeKind(Enum):
    """Why the agent leaves."""

    FINISHED = "finished"
    RELEASED = "released"
    SIGNAL = "signal"
    DRAINED = "drained"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class GoodbyeReport:
    """The node leaves and is clean."""

    kind: GoodbyeKind
    text: str


@dataclass(frozen=True, slots=True)
class DrainingReport:
    """The node wants to leave; its workers have been told."""

    until_ms: int
    reason: str


Report = (
    DrainingReport
    | ReadyReport
    | StartedReport
    | RefusedReport
    | ExitedReport
    | SucceededReport
    | BlockedReport
    | GoodbyeReport
)


@dataclass(frozen=True, slots=True)
class Ending:
    """The agent is on its way out."""

    exit_code: int
    kind: GoodbyeKind
    text: str
    is_told: bool = False
    """Goodbye was said: only the exit is left."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The node wants to leave: its workers were told, and go on until they are done or it is time.

    An exit that comes after this is no success and no failure: the worker has left.
    """

    until_ms: int
    reason: str
    ending: Ending
    """With which the agent ends then."""


@dataclass(frozen=True, slots=True)
class AgentState:
    """Everything that an agent knows."""

    workers: int
    """Workers that the node starts."""
    grace_ms: int
    """Between a stop signal of the agent's own and SIGKILL."""
    coordinator_timeout_ms: int
    """How long an agent without running workers does without a coordinator."""
    away_since_ms: int | None
    """Since when there is no session; None while there is one."""
    drain_ms: int = 0
    """How long workers may go on after a SIGTERM to the agent; 0 stops them at once."""
    drain_signal: int = 15
    """With which workers are told that the node drains."""
    fence_ms: int = 0
    """How long after the last confirmed heartbeat workers may live; 0: for ever."""
    confirmed_ms: int | None = None
    """When the last heartbeat or Hello that was answered was sent; None before the first."""
    held: Held | None = None
    last_round: int = 0
    """Highest round that was ordered here."""
    port: int = 0
    """Reserved for the next round; 0 while the node is not clean."""
    desired: Desired | None = None
    """The newest; None before the first."""
    revision: int = 0
    """Of `desired`."""
    epoch: int = 0
    """Highest epoch heard."""
    reports: tuple[Report, ...] = ()
    """Not acknowledged yet, oldest first. As many as one round can cause, since no round begins
    without a coordinator."""
    acknowledged: int = 0
    """Sequence of the last acknowledged report; the first of `reports` has the next one."""
    drain: Drain | None = None
    """Set from the wish to leave on; the ending follows."""
    notices: tuple[Notice, ...] = ()
    """What the coordinator said is about to happen."""
    ending: Ending | None = None
    sweep_token: int = 0
    """Of the last sweep that was asked for."""
