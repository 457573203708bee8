"""The real supervisor, for a program whose thread starts and stops the workers itself.

The core's order to start a round only announces it: `begin_round` starts the workers. A stop signal
waits for `release`, for a moment at most. Everything else happens at once: exits are reported, what
outlives its time is killed, and nothing outlives the agent.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.helper.leftovers import AGENT_MARK_ENV
from rallypoint.agent.round.round import Round
from rallypoint.agent.round.supervisor import Supervisor
from rallypoint.agent.torchelastic.variables import SIGNALS_ENV
from rallypoint.base.log import get_logger

log = get_logger()

PATIENCE_S = 2.0
"""How long a stop signal waits for the program: workers of other nodes wait for the stop, too."""


class RoundGone(Exception):
    """The round was stopped before its workers started."""


class LocalWorkers(Supervisor):
    """Workers that start and stop when the program's thread says so."""

    _is_released = False
    """The signal of the current round need not wait any more."""
    _patience: asyncio.TimerHandle | None = None
    """Set while a signal waits."""
    _waiting: int | None = None
    """The signal that waits."""

    def start(self, order: RunOrder) -> None:
        """Announce a round; `begin_round` starts its workers."""
        self.round, self._is_released = Round(self._parts, order), False

    def begin_round(self, number: int, environment: Mapping[str, str]) -> None:
        """Start the workers of the announced round.

        Args:
            number: of the round.
            environment: the program's own, which may have changed since the last round.

        Raises:
            RoundGone: it was stopped meanwhile.
        """
        if self.round.number != number or not self.round.is_announced:
            raise RoundGone(f"round {number} was stopped before its workers started")
        ours = {name: self._environment[name] for name in (AGENT_MARK_ENV, SIGNALS_ENV)}
        self._environment = {**environment, **ours}
        self.round.begin(self._environment)

    def signal(self, signum: int) -> None:
        """Let the workers get the signal when the program releases it."""
        if self._is_released or self.round.is_announced:
            super().signal(signum)
            return
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
