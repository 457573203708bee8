"""How long what the agents of one relay say may wait for room in the inboxes of their shards.

One task reads for all agents of a relay. While it waits, it hears none of them, nor the heartbeats
of other shards. So it waits for moments only, which is enough for a burst of reports, and ends the
streams of agents whose shard has no room then. Ends of streams wait separately.
"""

from __future__ import annotations

import asyncio

from rallypoint.server.agents.connections import Ended, note_dropped, note_ends
from rallypoint.server.core.messages import inputs
from rallypoint.server.shell.coordinator import Coordinator, CoordinatorEnded
from rallypoint.server.shell.inbox import InboxFull

WAITS_S_MAX = 0.5
"""Time that the reader may wait, of each `PERIOD_S`. A shard that works has room sooner."""
PERIOD_S = 1.0
"""As often as a relay shows life. It may miss four answers."""
ENDS_MAX = 4_096
"""Ends of streams that wait: each agent of a relay may come and go four times meanwhile."""


class WaitBudget:
    """What agents of one relay still may wait."""

    def __init__(self) -> None:
        """Begin with a whole period."""
        self._left_s = WAITS_S_MAX
        self._renewed_s = 0.0
        """When the period began, by the loop's clock."""

    async def submit(self, coordinator: Coordinator, input: inputs.Input) -> None:
        """Submit an input; wait a moment for room.

        Raises:
            InboxFull: when there is none.
            CoordinatorEnded: when no turn will come.
        """
        try:
            coordinator.submit_now(input)
        except InboxFull:
            await self._wait(coordinator, input)

    async def _wait(self, coordinator: Coordinator, input: inputs.Input) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if began_s - self._renewed_s >= PERIOD_S:
            self._left_s, self._renewed_s = WAITS_S_MAX, began_s
        if self._left_s <= 0:
            raise InboxFull
        try:
            async with asyncio.timeout(self._left_s):
                await coordinator.submit(input)
        except TimeoutError:
            raise InboxFull from None
        finally:
            self._left_s -= loop.time() - began_s


class LateEnds:
    """Informs the core of agents whose streams have ended; no one waits for that."""

    def __init__(self) -> None:
        """Begin without any."""
        self.late: list[Ended] = []
        """Those whose shard had no room yet."""
        self._wake = asyncio.Event()

    def note(self, ended: Ended | None) -> None:
        """Inform the core, now or soon; None: it need not learn anything."""
        if ended is None:
            return
        try:
            ended.coordinator.submit_now(ended.broken)
        except CoordinatorEnded:
            pass
        except InboxFull:
            if len(self.late) < ENDS_MAX:
                self.late.append(ended)
                self._wake.set()
            else:
                note_dropped(1)

    async def run(self) -> None:
        """Inform the core of those that are late, until cancelled. Then `late` has the others.

        Some of those may have been submitted. That is harmless: an end names its connection.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            ended = tuple(self.late)
            await note_ends(ended)
            del self.late[: len(ended)]
