"""The blueprint of the workers of one node."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.elastic.rendezvous.handler import RendezvousHandler
    from rallypoint.elastic.values.numa import NumaOptions


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
