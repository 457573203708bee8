"""The calls that wait at barriers. All calls of a generation share one answer, encoded once."""

from __future__ import annotations

import asyncio

from google.rpc.status_pb2 import Status
from msgspec import Struct, field

from rallypoint.server.core.messages.effects import BarrierOver, Effect
from rallypoint.server.core.model.barrier import BarrierKey, Ended, Participant
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import CoordinatorEnded
from rallypoint.server.shell.listeners import Listener

CALLS_PER_PARTICIPANT_MAX = 4
"""Calls that may wait for one generation, for each expected participant: one, and a few that were
sent again before the coordinator noticed the end of the last one."""


class Wait(Struct):
    """The calls that wait for one generation of a barrier."""

    calls: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the end."""
    ended: Ended | None = None
    """None at the end: no turn will come."""
    answer: bytes | Status | None = None
    """The encoded answer, or the status, once it was needed."""

    async def end(self) -> Ended:
        """Wait for the end of the generation.

        Raises:
            CoordinatorEnded: when no turn will come.
        """
        if self.ended is not None:
            return self.ended
        self.calls += 1
        try:
            await self.changed.wait()
        finally:
            self.calls -= 1
        if self.ended is None:
            raise CoordinatorEnded
        return self.ended


class BarrierWaits(Listener):
    """The waits of all open generations that someone waits for, and of those that have just ended.

    A turn may count an arrival, end its generation, and forget the barrier. So how it ended is kept
    here until the next turn, and every call of one generation gets one answer.
    """

    KINDS = (BarrierOver,)
    WORKERS_WAIT = True

    def __init__(self) -> None:
        """Begin without calls."""
        self._waits: dict[tuple[BarrierKey, int], Wait] = {}
        self._over: dict[BarrierKey, list[Wait]] = {}
        """Of the latest turn, by the name of the barrier."""

    def begin_turn(self, state: State) -> None:
        """Forget what the turn before has ended."""
        super().begin_turn(state)
        self._over.clear()

    def find(self, key: BarrierKey, generation: int) -> Wait:
        """Return the wait for an open generation, which the core will end."""
        return self._waits.setdefault((key, generation), Wait())

    def find_over(self, key: BarrierKey, participant: Participant, request_id: str) -> Wait | None:
        """Return the wait for the generation of an arrival that the latest turn has ended."""
        for wait in self._over.get(key, ()):
            if wait.ended is not None and wait.ended.has(participant, request_id):
                return wait
        return None

    def note(self, effect: Effect, state: State) -> None:
        """Answer the calls that wait for a generation; if a bug prevents it, they ask again."""
        if isinstance(effect, BarrierOver):
            try:
                self._answer(effect)
            except Exception:
                self._abandon(effect)
                raise

    def _answer(self, over: BarrierOver) -> None:
        wait = self._waits.pop((over.key, over.ended.generation), None) or Wait()
        wait.ended = over.ended
        wait.changed.set()
        self._over.setdefault(over.key, []).append(wait)

    def _abandon(self, over: BarrierOver) -> None:
        wait = self._waits.pop((over.key, over.ended.generation), None)
        if wait is not None:
            wait.changed.set()

    def end(self) -> None:
        """End every wait: no turn will come."""
        for wait in self._waits.values():
            wait.changed.set()
        self._waits.clear()
