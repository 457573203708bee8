"""Looks at the workers of a round from time to time, and tells when they stand still.

A look asks each worker for its recorder, and the kernel what its processes have used. What a worker
does not answer within the limit is missing; nothing here relies on a worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from rallypoint.agent.evidence.processes import (
    ProcessFacts,
    Usage,
    has_socket,
    read_process,
    read_usage,
)
from rallypoint.agent.evidence.progress import Limits, Observation, begin
from rallypoint.agent.evidence.recorder import Mark, parse_mark
from rallypoint.agent.evidence.server import GENERIC, NCCL, NoHandler, ask
from rallypoint.agent.evidence.target import Target
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger
from rallypoint.v1 import evidence_pb2

log = get_logger()

LIMIT_S = 2.0
"""How long a look may take."""
_DOING = "looking whether workers make progress"


class ProgressWatch:
    """Watches the workers of one round after the other."""

    def __init__(self, limits: Limits | None, files: FileThread, tasks: asyncio.TaskGroup) -> None:
        """Begin without a round.

        Args:
            limits: how long workers may make no progress; None: nothing is watched.
            files: the thread that asks the kernel.
            tasks: runs the watch.
        """
        self._limits = limits
        self._files = files
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._is_disturbed = False
        self._without_nccl: set[int] = set()
        """Workers that have no such recorder, by worker id."""

    def begin(
        self,
        targets: Callable[[], Sequence[Target]],
        is_wanted: Callable[[], bool],
        see: Callable[[int | None], None],
    ) -> None:
        """Watch the workers of a round that starts now, in place of the last one.

        Args:
            targets: returns the live workers.
            is_wanted: returns whether the round still runs.
            see: learns since when the workers stand still, in ms of the agent's clock, or by None
                that one makes progress again.
        """
        self.close()
        if self._limits is not None:
            self._task = self._tasks.create_task(self._run(self._limits, targets, is_wanted, see))

    def disturb(self) -> None:
        """Note that the agent makes the workers do something, which is no progress."""
        self._is_disturbed = True

    def close(self) -> None:
        """End the watch."""
        if self._task is not None:
            self._task.cancel()
        self._without_nccl.clear()

    async def _run(
        self,
        limits: Limits,
        targets: Callable[[], Sequence[Target]],
        is_wanted: Callable[[], bool],
        see: Callable[[int | None], None],
    ) -> None:
        try:
            progress = begin(limits, *_read_clocks())
            while True:
                await asyncio.sleep((progress.due_ms - _read_clocks()[0]) / 1000)
                if not is_wanted():
                    return
                is_disturbed, self._is_disturbed = self._is_disturbed, False
                now_ms, wall_ns = _read_clocks()
                seen = await self._look(targets())
                if not is_wanted():
                    return
                was_still = progress.still_since_ms is not None
                progress = progress.looked(seen, now_ms, wall_ns, is_disturbed=is_disturbed)
                if was_still != (progress.still_since_ms is not None):
                    see(progress.still_since_ms)
        except Exception as error:  # a bug in what looks at workers must not end them
            log.error("progress_watch_failed", exc_info=error)
            see(None)  # what is not watched any more is not suspected

    async def _look(self, targets: Sequence[Target]) -> list[Observation]:
        looks = [_Look(target) for target in targets]
        try:
            async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
                for look in looks:
                    tasks.create_task(look.take(self._files, self._without_nccl))
        except TimeoutError:
            pass  # each has noted what is missing
        return [look.observation() for look in looks]


class _Look:
    """A look at one worker, and what it has found so far."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._facts = ProcessFacts()
        self._usage: dict[int, Usage] | None = None
        self._mark: Mark | None = None
        self._is_mute = False

    async def take(self, files: FileThread, without_nccl: set[int]) -> None:
        """Find out what the worker has done."""
        self._is_mute = bool(self._target.prefix)
        try:
            if await files.run(_DOING, self._read):
                self._mark = await self._ask_all(files, without_nccl)
        except OSError:  # it hangs up, or too many calls wait
            return
        except (NoHandler, ValueError):
            pass  # this torch has none, or its answer is too long: as without a server
        self._is_mute = False

    def _read(self) -> bool:
        """Ask the kernel; return whether the worker has a server. Called in the thread.

        A server whose socket the program has closed ends the process when it is asked.
        """
        target = self._target
        self._facts, usage = read_process(target.pid), read_usage(target.pid)
        has_server = bool(target.prefix) and has_socket(target.pid, target.socket)
        self._usage = usage
        return has_server

    async def _ask_all(self, files: FileThread, without_nccl: set[int]) -> Mark:
        mark = await self._ask(GENERIC, files)
        if self._target.worker_id in without_nccl:
            return mark
        try:
            return mark.merged(await self._ask(NCCL, files))
        except NoHandler:
            without_nccl.add(self._target.worker_id)
            return mark

    async def _ask(self, handler: str, files: FileThread) -> Mark:
        data = await ask(self._target.socket, handler)
        # In the thread: the recorder of a broken worker may be large, and heartbeats must not wait.
        return await files.run(_DOING, partial(parse_mark, data))

    def observation(self) -> Observation:
        """Return what is known by now."""
        output, state = self._target.output, self._facts.state
        wrote_ms = None
        if not output.is_file:  # a file may block
            wrote_ms = _read_clocks()[0] - output.silent_ms()
        return Observation(
            worker_id=self._target.worker_id,
            is_store=self._target.rank == 0,
            usage=self._usage,
            mark=self._mark,
            is_mute=self._is_mute,
            is_traced=state == evidence_pb2.PROCESS_STATE_TRACED,
            is_stopped=state == evidence_pb2.PROCESS_STATE_STOPPED,
            wrote_ms=wrote_ms,
        )


def _read_clocks() -> tuple[int, int]:
    """Return the agent's clock in ms, and the wall clock in ns."""
    wall_ns = time.time_ns()  # the recorder's
    return time.monotonic_ns() // 1_000_000, wall_ns
