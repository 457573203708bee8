"""What an agent needs of the workers of its node, whatever program starts them.

`round.supervisor.Supervisor` starts them itself. `rallypoint.embedded.foreign.ForeignWorkers`
stands for workers that another launcher runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from rallypoint.agent.core.desired import Notice, RunOrder
from rallypoint.v1 import evidence_pb2

SWEEP_LIMIT_MS = 5_000
"""A process that survives SIGKILL this long is reported as blocked."""


class Workers(Protocol):
    """Starts, signals and sweeps the workers of a node, in the agent's event loop.

    Every request returns at once; what becomes of it reaches the core as an input.
    """

    tasks: asyncio.TaskGroup
    """Runs what takes time."""

    @property
    def is_starting(self) -> bool:
        """True from the request to start a round until its workers start."""

    async def begin(self) -> None:
        """Get ready, before the first session."""

    def start(self, order: RunOrder) -> None:
        """Start the workers of a round."""

    def signal(self, signum: int) -> None:
        """Ask every worker to stop."""

    def forward(self, signum: int) -> None:
        """Pass a signal on to workers that keep running."""

    def tell(self, number: int, notices: Sequence[Notice], node_name: str) -> None:
        """Replace the notices that the workers of a round find."""

    async def notices_written(self) -> None:
        """Wait until the workers can find the last notices, for a moment at most."""

    def sweep(self, token: int) -> None:
        """End everything that the workers started; `Swept` answers."""

    async def check_files(self, workers: int) -> None:
        """Find out whether the folders and files of so many workers can be made.

        Raises:
            OSError: they cannot.
        """

    async def evidence(self, limit_s: float) -> Sequence[evidence_pb2.RankEvidence]:
        """Return what the workers do, as far as it can be found out within so many seconds."""

    async def log_survivors(self, limit_s: float) -> None:
        """Log where the workers stand that have not ended since the stop signal."""

    def arm_fence(self, at_ms: int) -> None:
        """Let everything end at this monotonic time."""

    async def end_workers(self, grace_s: float) -> None:
        """Stop the workers without the core."""

    def parts(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return what closes each part, in order."""
