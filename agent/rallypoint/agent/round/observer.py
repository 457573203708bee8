"""The interface of observers, which explain why a worker ended.

An exit code or a signal does not name the cause. An observer knows one cause, such as the kernel's
OOM killer. It watches each worker from its start, and adds the cause to the worker's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from rallypoint.agent.core.held_round import ErrorRecord


class WorkerEnd(Struct, frozen=True):
    """How a worker ended."""

    exit_code: int | None
    signal: int | None
    at_ns: int
    """Monotonic time when it ended."""
    is_kill_ours: bool
    """The agent or its helper may have sent the SIGKILL that ended the worker."""
    error: ErrorRecord | None
    oom_killed: bool = False
    """The kernel killed the worker because memory ran out."""


class Explanation(Protocol):
    """An observer's knowledge about the end of one worker."""

    def explain(self, end: WorkerEnd) -> WorkerEnd:
        """Return `end` with the observer's additions. Called once, soon after the end."""


class Observer(Protocol):
    """Watches the workers of this node."""

    async def begin(self) -> None:
        """Start to watch, in the running event loop."""

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables that workers need for the observer."""

    def started(self, pid: int, local_rank: int) -> None:
        """Watch a worker."""

    def ended(self, pid: int) -> Explanation | None:
        """Stop watching a worker; return an explanation of its end, if there is one."""

    def swept(self) -> None:
        """Note that no process of the workers is left."""

    def close(self) -> None:
        """Release all resources."""
