"""The warm part of a start: which workers standbys become, and which start cold."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from rallypoint.agent.core.desired import RunOrder, without_round
from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.output.outputs import WorkerOutput, WorkerOutputs
from rallypoint.agent.warm import policy
from rallypoint.agent.warm.command import RECORD_ENV, Shape, Warmth, with_hook
from rallypoint.agent.warm.home import Exchange
from rallypoint.agent.warm.machine import find_limit_bytes
from rallypoint.agent.warm.making import RECORD_BYTES_MAX, Maker
from rallypoint.agent.warm.pacing.pace import Pace
from rallypoint.agent.warm.phase import Phase
from rallypoint.agent.warm.pool import Pool
from rallypoint.agent.warm.standby import Standby
from rallypoint.base.log import get_logger

log = get_logger()


class Warm(Struct, frozen=True):
    """What standbys a node has."""

    warmth: Warmth
    shape: Shape
    """Of its workers' command line."""
    workers: int
    role: str


Adopt = Callable[[RunOrder, int, Standby, WorkerOutput], None]
"""Makes a standby the worker with this local rank; it may have ended since."""


class WarmStarts(Struct):
    """Lets the standbys of a pool become the workers of rounds."""

    pool: Pool
    exchange: Exchange
    adopt: Adopt
    records: bool = False
    """Workers that start cold record what they import."""
    record_bytes_max: int = RECORD_BYTES_MAX
    """A record that is longer has enough: no worker adds to it."""

    def choose(self, requests: Sequence[SpawnRequest | None]) -> dict[int, Standby]:
        """Return the standbys that will be workers, by local rank; the others are ended.

        Args:
            requests: by local rank; None: this worker cannot be started.
        """
        return self.pool.choose(_present(requests), self.exchange)

    async def run(
        self, chosen: Mapping[int, Standby], requests: Sequence[SpawnRequest | None]
    ) -> dict[int, Standby]:
        """Return the standbys that are workers now, by local rank."""
        return await self.pool.run(chosen, _present(requests))

    def take_over(
        self, order: RunOrder, local_rank: int, standby: Standby, output: WorkerOutput
    ) -> None:
        """Make a standby that runs the worker with this local rank."""
        self.pool.hand_over(standby)
        self.adopt(order, local_rank, standby, output)

    def cold(self, local_rank: int, request: SpawnRequest, record: str) -> SpawnRequest:
        """Return the request of a worker that starts cold.

        Args:
            local_rank: of the worker.
            request: its request.
            record: file in which it records what it imports; empty: it does not.
        """
        if not record:
            return request
        self.pool.note_record(local_rank, record)
        return request._replace(env=with_hook(request.env, RECORD_ENV, record))

    def told(self, *, has_notices: bool, is_whole: bool) -> None:
        """Note that the notices of a round have changed.

        Args:
            has_notices: a change of the round is announced.
            is_whole: all workers of the round live.
        """
        if has_notices:
            self.pool.enter(Phase.DISTURBED)
        elif is_whole:
            self.pool.calm()

    def log(self, order: RunOrder, warm: int, cold: int) -> None:
        """Log how the workers of a round have started."""
        log.info("warm_started", round=order.number, workers=warm, cold=cold)


def new_pool(
    warm: Warm,
    inherited: Mapping[str, str],
    sample: Callable[[RunOrder, int], SpawnRequest],
    outputs: WorkerOutputs,
    launch: Callable[[], WorkerHost],
    root: Callable[[], int],
    tasks: asyncio.TaskGroup,
) -> Pool:
    """Return the standbys of a node; there are none yet.

    Args:
        warm: what they are.
        inherited: what all workers inherit.
        sample: returns the request of the worker with a local rank.
        outputs: the workers' output.
        launch: starts a helper.
        root: returns the pid of the helper below which the workers live.
        tasks: runs what takes time.
    """
    order, consoles = without_round(warm.workers, warm.role), outputs.consoles
    err = consoles.err.fd
    maker = Maker(
        warmth=warm.warmth,
        shape=warm.shape,
        inherited=inherited,
        sample=partial(sample, order),
        guess=partial(outputs.kinds, order),
        terminal_fd=err if os.isatty(err) else consoles.out.fd,
        pace=Pace(root, tasks),
    )
    limit_bytes = warm.warmth.memory_bytes
    state = policy.begin(
        warm.workers,
        find_limit_bytes() if limit_bytes is None else limit_bytes,
        time.monotonic_ns() // 1_000_000,
        can_import=not warm.warmth.is_auto,
    )
    return Pool(
        maker=maker,
        shape=warm.shape,
        inherited=inherited,
        state=state,
        tasks=tasks,
        launch=launch,
    )


def _present(requests: Sequence[SpawnRequest | None]) -> dict[int, SpawnRequest]:
    return {rank: request for rank, request in enumerate(requests) if request is not None}
