"""The workers of one node, and the state that they share."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.elastic.values.worker_spec import WorkerSpec


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
