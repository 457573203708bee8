"""When a signal is sent to the workers of a round, as each request of the core wants it.

Rules:
  * A worker that still starts gets each signal once, as soon as it runs, as the kernel would do.
  * Notices are written before a later signal is sent: the handler of a worker finds them. Signals
    keep their order meanwhile: the SIGTERM at the end of a drain follows its signal.
  * Before the first signal to the groups, each worker is looked at: what it does afterwards, it
    does because of the signal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from rallypoint.agent.workers.exits import ExitReports, Worker
from rallypoint.agent.workers.notices import NoticeWriter


class Delivery(Struct):
    """Sends signals to the workers of one node."""

    send: Callable[[int, bool], None]
    """Asks the helper to send one to every worker: to its process group, or to it alone."""
    is_starting: Callable[[], bool]
    """Whether the files of a round are prepared; its workers start then."""
    workers: Mapping[int, Worker]
    """Those that have not ended."""
    exits: ExitReports
    notices: NoticeWriter
    tasks: asyncio.TaskGroup
    _round: int = 0
    """The round whose workers these are."""
    _early: list[tuple[int, bool]] = field(default_factory=list)
    """Signals to workers that the helper does not know yet, and whether each is for them alone."""
    _last: asyncio.Task[None] | None = None
    """Sends the latest signal that had to wait; later ones follow it."""

    def begin(self, number: int) -> None:
        """Note that a round starts."""
        self._round, self._last = number, None
        self._early.clear()

    def signal(self, signum: int) -> None:
        """Signal the process group of every worker."""
        if self._is_early(signum, is_alone=False):
            return
        fresh = [worker for worker in self.workers.values() if not worker.is_signalled]
        for worker in fresh:
            worker.is_signalled = True
        has_files = any(worker.output.is_file for worker in fresh)
        if self._is_waiting or self.notices.is_writing or has_files:
            self._send_later(signum, fresh, is_alone=False)
            return
        for worker in fresh:
            worker.look()
        self.send(signum, False)

    def forward(self, signum: int) -> None:
        """Signal the process of every live worker, but not the processes that it started.

        The children of a data loader would die of a signal that only their parent handles.
        """
        if self._is_early(signum, is_alone=True):
            return
        if self._is_waiting:
            self._send_later(signum, (), is_alone=True)
        else:
            self.send(signum, True)

    @property
    def _is_waiting(self) -> bool:
        return self._last is not None and not self._last.done()

    def _send_later(self, signum: int, fresh: Sequence[Worker], *, is_alone: bool) -> None:
        waiting = self._send_in_turn(self._last, self._round, signum, fresh, is_alone=is_alone)
        self._last = self.tasks.create_task(waiting)

    async def _send_in_turn(
        self,
        before: asyncio.Task[None] | None,
        number: int,
        signum: int,
        fresh: Sequence[Worker],
        *,
        is_alone: bool,
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self.exits.look(fresh)
        if not is_alone:
            await self.notices.written()
        if number == self._round:  # else no process is left of the workers that it was meant for
            self.send(signum, is_alone)

    def _is_early(self, signum: int, *, is_alone: bool) -> bool:
        if not self.is_starting():
            return False
        if (signum, is_alone) not in self._early:
            self._early.append((signum, is_alone))
        return True

    def take_early(self) -> list[tuple[int, bool]]:
        """Return what has come too early, and whether it is for the workers alone."""
        early, self._early = self._early, []
        return early
