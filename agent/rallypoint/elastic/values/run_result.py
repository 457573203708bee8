"""The result of a job, as far as it ran on this node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rallypoint.elastic.values.worker_group import WorkerState


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
