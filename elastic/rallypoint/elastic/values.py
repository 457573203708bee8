"""What an agent runs, and what becomes of it: specifications, workers, states and results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from rallypoint.agent.machine.numa import Binding

if TYPE_CHECKING:
    from rallypoint.elastic.rendezvous import RendezvousHandler


AffinityMode = Binding
START_METHODS = ("spawn", "fork", "forkserver")
"""How the process of a function's worker begins; the names of `multiprocessing`."""


def check_start_method(name: str) -> None:
    """Raise ValueError if there is no such start method."""
    if name not in START_METHODS:
        known = ", ".join(START_METHODS)
        raise ValueError(f"start_method {name!r} is unknown; known: {known}")


@dataclass(frozen=True)
class NumaOptions:
    """Binds each worker to CPUs near its GPU."""

    affinity_mode: AffinityMode
    should_fall_back_if_binding_fails: bool = False
    """Start workers unbound, with a warning, where binding is impossible."""


@dataclass
class WorkerSpec:
    """The workers of one node: how many, what they run, and how often they may fail.

    The fields and defaults are those of torch's `WorkerSpec`. Other nodes of the job may have
    another number of workers, and another role.
    """

    role: str
    """Workers with the same role are numbered among themselves, too."""
    local_world_size: int
    """Workers on this node, at least 1."""
    rdzv_handler: RendezvousHandler
    """The job, and where its coordinator is."""
    fn: Callable[..., Any] | None = None
    """Deprecated: use `entrypoint`."""
    entrypoint: Callable[..., Any] | str | None = None
    """A function, or a program: a command is started as it is, without an interpreter."""
    args: tuple[Any, ...] = ()
    """Arguments of the entry point; `${local_rank}` in a text stands for the local rank."""
    max_restarts: int = 3
    """Restarts after failures, counted once for the whole job."""
    monitor_interval: float = 0.1
    """Seconds between two calls of `_monitor_workers`, at most: a change wakes the agent."""
    master_port: int | None = None
    """Port that rank 0 of this node offers for the workers' store; None: a free one per round."""
    master_addr: str | None = None
    """MASTER_ADDR of this node's workers; None: the address of the round's rank 0."""
    local_addr: str | None = None
    """Address of this node for workers elsewhere; None: the one that leads to the coordinator."""
    event_log_handler: str = "null"
    """Name of the handler that gets events."""
    numa_options: NumaOptions | None = None
    """Binds each worker to CPUs; None: no worker is bound."""
    duplicate_stdout_filters: list[str] | None = None
    """Lines of tee'd output that contain one of these go to another file, too."""
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    """Every worker sees one GPU, as device 0, and gets LOCAL_RANK=0."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            AssertionError: the number of workers or the interval is not positive, or there is no
                entry point. The type is torch's.
        """
        if self.local_world_size <= 0:
            raise AssertionError(f"local_world_size must be positive, not {self.local_world_size}")
        if self.monitor_interval <= 0:
            raise AssertionError(f"monitor_interval must be positive, not {self.monitor_interval}")
        if self.fn is not None:
            text = "WorkerSpec.fn is deprecated: use WorkerSpec.entrypoint"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            self.entrypoint = self.fn
        if not self.entrypoint:
            raise AssertionError("a WorkerSpec needs an entrypoint: a function or a program")

    def get_entrypoint_name(self) -> str:
        """Return the qualified name of a function, or the file name of a program."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        return name_function(self.entrypoint)


def name_function(function: Callable[..., Any] | None) -> str:
    """Return the qualified name of a function, or a description of another callable object."""
    return getattr(function, "__qualname__", None) or repr(function)


class Worker:
    """One worker of this node, with its ranks in the current round.

    Ranks are -1 before the first round. They may change with each round.
    """

    __slots__ = ["global_rank", "id", "local_rank", "role_rank", "role_world_size", "world_size"]

    def __init__(
        self,
        local_rank: int,
        global_rank: int = -1,
        role_rank: int = -1,
        world_size: int = -1,
        role_world_size: int = -1,
    ) -> None:
        """Create a worker that was not started.

        Args:
            local_rank: its number on the node, 0 to n-1.
            global_rank: its number among all workers of the round.
            role_rank: its number among those with the same role.
            world_size: workers of all nodes.
            role_world_size: workers with the same role, of all nodes.
        """
        self.id: Any = None
        """What `_start_workers` returned for it; the local agent returns the pid."""
        self.local_rank = local_rank
        self.global_rank = global_rank
        self.role_rank = role_rank
        self.world_size = world_size
        self.role_world_size = role_world_size

    def __str__(self) -> str:
        """Return the ranks."""
        names = ("local_rank", "global_rank", "role_rank", "world_size", "role_world_size")
        return ",".join(f"{name}={getattr(self, name)}" for name in names)

    __repr__ = __str__


class WorkerState(str, Enum):  # noqa: UP042  # it prints as torch's does
    """The state of all workers of a node. If one of them fails, the group has failed.

    A group begins as INIT, becomes HEALTHY with each round, and ends as SUCCEEDED or FAILED. In
    between it is STOPPED while the coordinator forms the next round: a worker has failed on any
    node, a node was lost, or one joins.
    """

    UNKNOWN = "UNKNOWN"
    """The agent does not know: one of its actions failed half-way. It ends."""
    INIT = "INIT"
    """Not started yet."""
    HEALTHY = "HEALTHY"
    """All workers run."""
    UNHEALTHY = "UNHEALTHY"
    """They run, but the agent does not trust them: the round is restarted."""
    STOPPED = "STOPPED"
    """The agent has stopped them; the next round follows."""
    SUCCEEDED = "SUCCEEDED"
    """All have exited with 0."""
    FAILED = "FAILED"
    """A worker has failed."""

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """Return whether the processes exist, healthy or not."""
        return state in {WorkerState.HEALTHY, WorkerState.UNHEALTHY}


class WorkerGroup:
    """The workers that one agent runs, and what they share in the current round."""

    __slots__ = [
        "group_rank",
        "group_world_size",
        "master_addr",
        "master_port",
        "spec",
        "state",
        "store",
        "workers",
    ]

    def __init__(self, spec: WorkerSpec) -> None:
        """Create a group that was not started."""
        self.spec = spec
        self.workers = [Worker(local_rank=rank) for rank in range(spec.local_world_size)]
        self.store: Any = None
        """Keys and values of the round."""
        self.group_rank: int | None = None
        """The node's number in the round; None before the first."""
        self.group_world_size: int | None = None
        """Nodes of the round; None before the first."""
        self.master_addr: str | None = None
        self.master_port: int | None = None
        self.state = WorkerState.INIT


@dataclass
class RunResult:
    """What became of the workers of this node, by their *global* ranks.

    No rank is in both `return_values` and `failures`. A worker that the agent stopped because
    another one failed is in neither.
    """

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    """What each function returned, if all workers succeeded; None for a program."""
    failures: dict[int, Any] = field(default_factory=dict)
    """A `ProcessFailure` for each worker that failed."""

    def is_failed(self) -> bool:
        """Return whether the workers have failed."""
        return self.state is WorkerState.FAILED
