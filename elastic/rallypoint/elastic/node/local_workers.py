"""The real supervisor, for a program whose thread starts and stops the workers itself.

The core's order to start a round only announces it: `begin_round` starts the workers. A stop signal
waits for `release`, for a moment at most. Everything else happens at once: exits are reported, what
outlives its time is killed, and nothing outlives the agent.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.helper.leftovers import AGENT_MARK_ENV
from rallypoint.agent.torchelastic.variables import SIGNALS_ENV
from rallypoint.agent.workers.supervisor import Supervisor
from rallypoint.base.log import get_logger

log = get_logger()

PATIENCE_S = 2.0
"""How long a stop signal waits for the program: workers of other nodes wait for the stop, too."""


class RoundGone(Exception):
    """The round was stopped before its workers started."""


class LocalWorkers(Supervisor):
    """Workers that start and stop when the program's thread says so."""

    _order: RunOrder | None = None
    """Announced, and not begun."""
    _is_released = False
    """The signal of the current round need not wait any more."""
    _patience: asyncio.TimerHandle | None = None
    """Set while a signal waits."""
    _waiting: int | None = None
    """The signal that waits."""

    @property
    def is_starting(self) -> bool:
        """True from the order to start a round until its workers start."""
        return self._order is not None or super().is_starting

    def start(self, order: RunOrder) -> None:
        """Announce a round; `begin_round` starts its workers."""
        self._order, self._is_released = order, False

    def begin_round(self, number: int, environment: Mapping[str, str]) -> None:
        """Start the workers of the announced round.

        Args:
            number: of the round.
            environment: the program's own, which may have changed since the last round.

        Raises:
            RoundGone: it was stopped meanwhile.
        """
        order = self._order
        if order is None or order.number != number:
            raise RoundGone(f"round {number} was stopped before its workers started")
        self._order = None
        ours = {name: self._launcher.environment[name] for name in (AGENT_MARK_ENV, SIGNALS_ENV)}
        self._launcher.environment = {**environment, **ours}
        super().start(order)

    def signal(self, signum: int) -> None:
        """Let the workers get the signal when the program releases it."""
        order, self._order = self._order, None
        if order is not None:
            text = "the round was stopped before its workers started"
            for rank in range(order.assignment.local_world_size):
                self.post(inputs.WorkerNotStarted(order.number, rank, text))
        elif self._is_released:
            super().signal(signum)
        else:
            self._waiting = signum
            if self._patience is None:
                loop = asyncio.get_running_loop()
                self._patience = loop.call_later(PATIENCE_S, self._lose_patience)

    def release(self, signum: int | None = None) -> None:
        """Let the stop signal of the current round pass, now or when it comes.

        Args:
            signum: replaces a signal that waits; None: it is the core's.
        """
        self._is_released = True
        waiting = self._stop_waiting()
        if waiting is not None:
            super().signal(waiting if signum is None else signum)

    def sweep(self, token: int) -> None:
        """Kill every process that the workers started; `Swept` answers."""
        self._order = None
        self._stop_waiting()
        super().sweep(token)

    async def end_workers(self, grace_s: float) -> None:
        """Stop the workers without the core: SIGTERM, and `grace_s` seconds for their ends."""
        self.release(signal.SIGTERM)
        await super().end_workers(grace_s)

    def _stop_waiting(self) -> int | None:
        """Return the signal that has waited, if one has."""
        waiting, self._waiting = self._waiting, None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        return waiting

    def _lose_patience(self) -> None:
        log.warning("stop_not_awaited", why="the program is busy", then="the workers are stopped")
        self.release()
