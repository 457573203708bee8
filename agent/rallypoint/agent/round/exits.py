"""Composes the report of a worker's failure or exit: its error, its last words, and the cause.

The error is the one in the worker's error file. Without such a file it is the uncaught error that
the worker had printed before the agent signalled it; if neither is known and the disk of its log is
full, that is the error. Then observers may add a cause: the watchdog
an expired timer, the OOM watch a kill by the kernel.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.core.held_round import ErrorRecord
from rallypoint.agent.core.inputs import WorkerEnded, WorkerRecorded
from rallypoint.agent.evidence.target import Target
from rallypoint.agent.helper.events import Exited
from rallypoint.agent.output.full_disk import describe_full_disk
from rallypoint.agent.output.outputs import WorkerOutput
from rallypoint.agent.round.observer import Explanation, Observer, WorkerEnd
from rallypoint.agent.round.oom import OomWatch
from rallypoint.agent.round.own_folder import OwnFolder
from rallypoint.agent.round.watchdog import Watchdog
from rallypoint.agent.torchelastic.error_files import find_uncaught
from rallypoint.agent.torchelastic.error_watch import ErrorFile, Found
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger

log = get_logger()

TAIL_WAIT_S = 0.05
"""How long the report of an exit waits for the rest of standard error."""
FILES_WAIT_S = 2.0
"""How long the report of an exit waits for the worker's files; it is sent without them then."""
LOOK_WAIT_S = 0.1
"""How long a signal waits until the end of standard error was read from a file."""
TEARDOWN_MS = 10_000
"""If an error was printed longer ago, the worker survived it, or its process hangs."""


class Worker(Struct):
    """A live worker."""

    round: int
    local_rank: int
    output: WorkerOutput
    error_file: ErrorFile | None = None
    """None: it has none."""
    uncaught: ErrorRecord | None = None
    """The error that was ending it when it was first signalled, or the full disk of its log."""
    uncaught_ns: int = 0
    """Monotonic time when that error was printed."""
    is_signalled: bool = False
    pid: int = 0
    """Its process; 0: it has not started yet."""
    armed: str = ""
    """Prefix of the files by which it shows what it does; empty: it was not asked to."""

    def look(self) -> None:
        """Note, before the first signal, whether the worker's own error is ending it.

        May block if standard error is a file.
        """
        silent_ms = self.output.silent_ms()
        if silent_ms < TEARDOWN_MS:
            self.uncaught_ns = time.monotonic_ns() - silent_ms * 1_000_000
            self.uncaught = find_uncaught(self.output.tail())

    def look_at_disk(self, ended_ns: int) -> None:
        """Note that a worker that ended by itself could not print why; may block."""
        if self.uncaught is None and not self.is_signalled:
            full = describe_full_disk(self.output.stderr_file)
            if full:
                self.uncaught, self.uncaught_ns = ErrorRecord(full, "", 0), ended_ns

    def uncaught_at(self, seen_ns: int) -> ErrorRecord | None:
        """Return that error, with its age at this monotonic time; None when there is none."""
        if self.uncaught is None:
            return None
        age_ms = (seen_ns - self.uncaught_ns) // 1_000_000
        return replace(self.uncaught, before_exit_ms=max(0, age_ms))


def list_targets(order: RunOrder, workers: Mapping[int, Worker]) -> list[Target]:
    """Return the workers of a round that have started, for a look at what they do, by rank."""
    return [
        Target(
            worker_id=worker_id,
            rank=order.assignment.first_rank + worker.local_rank,
            local_rank=worker.local_rank,
            world_size=order.header.world_size,
            pid=worker.pid,
            prefix=worker.armed,
            output=worker.output,
        )
        for worker_id, worker in sorted(workers.items())
        if worker.pid
    ]


class ExitReports(Struct, frozen=True):
    """Composes the report of each failure and exit, with the help of the observers."""

    post: Callable[[WorkerEnded | WorkerRecorded], None]
    files: FileThread
    """Reads the workers' files."""
    observers: tuple[Observer, ...]
    """Observers in the order of their explanations: each sees those of earlier ones."""

    async def begin(self) -> None:
        """Start the observers.

        Raises:
            TimerFileRefused: timers are enabled, but their FIFO cannot be made.
        """
        for observer in self.observers:
            await observer.begin()

    def variables(self) -> dict[str, str]:
        """Return the environment variables that workers need for the observers."""
        variables: dict[str, str] = {}
        for observer in self.observers:
            variables.update(observer.variables())
        return variables

    def started(self, pid: int, local_rank: int) -> None:
        """Make the observers watch a worker."""
        for observer in self.observers:
            observer.started(pid, local_rank)

    def swept(self) -> None:
        """Tell the observers that no process of the workers is left."""
        for observer in self.observers:
            observer.swept()

    def close(self) -> None:
        """End the observers."""
        for observer in self.observers:
            observer.close()

    def report_found(self, worker: Worker, found: Found) -> None:
        """Report the error that a running worker recorded; its exit follows."""
        error = found.error
        now_s = time.time()  # noqa: TID251  # for people to read
        recorded_s = now_s - (error.before_exit_ms or 0) / 1000
        output = worker.output
        self.post(
            WorkerRecorded(
                round=worker.round,
                local_rank=worker.local_rank,
                error=error,
                stderr_tail="" if output.is_file else output.tail(),  # a file may block
                at_ms=found.seen_ns // 1_000_000,
                failed_ms=int((recorded_s if error.time_s is None else error.time_s) * 1000),
                error_file=_as_text(output.error_file),
                stderr_file=_as_text(output.stderr_file),
            )
        )

    async def report(self, worker: Worker, event: Exited) -> None:
        """Report how a worker ended, once the end of its standard error was read."""
        late_s = (time.monotonic_ns() - event.at_ns) / 1e9
        ended_s = time.time() - late_s  # noqa: TID251  # compared with the time of the error file
        explanations = [observer.ended(event.pid) for observer in self.observers]
        is_success, signalled_ns = event.exit_code == 0, event.signalled_ns
        worker.output.hurry()
        if not is_success:
            await worker.output.wait_end(TAIL_WAIT_S)
        path = "" if is_success else worker.output.error_file
        recorded, tail, error = None, "", None
        if not is_success:
            recorded, tail = await self._read(worker, ended_s, event.at_ns)
            error = worker.uncaught_at(event.at_ns) if recorded is None else recorded
        end = self._explain(event, error, explanations)
        recorded_s = None if end.error is None else end.error.time_s
        failed_s = ended_s if recorded_s is None else recorded_s
        self.post(
            WorkerEnded(
                round=worker.round,
                local_rank=worker.local_rank,
                exit_code=end.exit_code,
                signal=end.signal,
                error=end.error,
                stderr_tail=tail,
                at_ms=event.at_ns // 1_000_000,
                oom_killed=end.oom_killed,
                failed_ms=int(failed_s * 1000),
                error_file="" if recorded is None else _as_text(path),
                stderr_file="" if is_success else _as_text(worker.output.stderr_file),
                signalled_ms=None if signalled_ns is None else signalled_ns // 1_000_000,
            )
        )

    async def look(self, workers: Sequence[Worker]) -> None:
        """Look at workers before their first signal, and wait for their files for a moment."""
        in_files = [worker for worker in workers if worker.output.is_file]
        for worker in workers:
            if not worker.output.is_file:
                worker.look()
        if not in_files:
            return

        def look() -> None:
            for worker in in_files:
                worker.look()

        try:
            async with asyncio.timeout(LOOK_WAIT_S):
                await self.files.run("reading standard error", look)
        except (TimeoutError, OSError):
            pass  # the signal cannot wait: an error that is ending a worker stays unknown

    async def _read(
        self, worker: Worker, ended_s: float, ended_ns: int
    ) -> tuple[ErrorRecord | None, str]:
        """Return the error that a failed worker recorded, and the end of its standard error."""
        output, file = worker.output, worker.error_file
        tail = "" if output.is_file else output.tail()
        if file is None and not output.is_file:
            return None, tail

        def read() -> tuple[ErrorRecord | None, str]:
            recorded = None if file is None else file.read(ended_s, ended_ns)
            if not output.is_file:
                return recorded, tail
            printed = output.tail()
            if recorded is None and find_uncaught(printed) is None:
                worker.look_at_disk(ended_ns)
            return recorded, printed

        try:
            async with asyncio.timeout(FILES_WAIT_S):
                return await self.files.run("reading the files of a failed worker", read)
        except (TimeoutError, OSError):
            why = f"its file system does not answer within {FILES_WAIT_S:g} s"
            log.warning("worker_files_skipped", local_rank=worker.local_rank, why=why)
            return None, tail

    def _explain(
        self,
        event: Exited,
        error: ErrorRecord | None,
        explanations: Sequence[Explanation | None],
    ) -> WorkerEnd:
        # Without a status the helper has died, and the parent-death signal has killed its workers.
        has_status = event.exit_code is not None or event.signal is not None
        end = WorkerEnd(
            exit_code=event.exit_code,
            signal=event.signal if has_status else int(signal.SIGKILL),
            at_ns=event.at_ns,
            is_kill_ours=not has_status or event.was_killed,
            error=error,
        )
        for explanation in explanations:
            if explanation is not None:
                end = explanation.explain(end)
        return end


def _as_text(path: str) -> str:
    """Return a path with undecodable bytes replaced: a message carries only text."""
    return os.fsencode(path).decode(errors="replace")


def new_observers(
    environment: Mapping[str, str], own: OwnFolder, files: FileThread, root: Callable[[], int]
) -> tuple[Observer, ...]:
    """Return everything that may explain the end of a worker.

    Args:
        environment: the agent's own.
        own: the agent's own folder.
        files: the thread for that one.
        root: returns the pid of the process below which all workers are.
    """
    # The watchdog first: a SIGKILL that it sent is ours, not the kernel's.
    return Watchdog(environment, own.path, files, root), OomWatch()
