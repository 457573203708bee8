"""The watchdog for timers of workers: signals a process whose timer expires.

A process of a worker sets a timer through a FIFO (see torchelastic.timers). When the timer expires,
that process gets the signal named in its request, if it is a descendant of the agent's helper. With
a signal of 0 or less the expiry is only logged.

A timer's time left is computed once, when its request is read. The monotonic clock counts from then
on, so a change of the system clock expires nothing.

The watchdog does not poll. The event loop reports what can be read, and one of its timers is due
with the first of ours. Before a timer expires, the FIFO is read: a release may be waiting there.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.core.held_round import ErrorRecord
from rallypoint.agent.helper.descendants import is_descendant, read_stat, signal_verified
from rallypoint.agent.round.observer import WorkerEnd
from rallypoint.agent.torchelastic.timers import (
    Request,
    TimerFile,
    TimerFileRefused,
    timer_file,
)
from rallypoint.agent.torchelastic.variables import SWITCH_ENV, TIMERS_ENV
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger

log = get_logger()

TIMERS_MAX = 16_384
"""Pending timers. A worker has a few, and so has each of its data loaders; more indicate a leak."""
MAKE_S_MAX = 10.0
"""How long the agent waits for its FIFO before it gives up."""
CLEANUP_MS = 10_000
"""A worker that handles the signal of its timer and lives longer than this has survived it."""


class Timer(Struct, frozen=True):
    """A pending timer. Times are seconds of the event loop's clock."""

    pid: int
    scope: str
    born_ticks: int
    """When the process started; a later process with the same pid is another one."""
    set_s: float
    due_s: float
    signum: int


class Expiry(Struct, frozen=True):
    """A worker was signalled because its timer expired."""

    text: str
    signum: int
    at_ns: int
    """Monotonic time."""

    def explain(self, end: WorkerEnd) -> WorkerEnd:
        """Return the end with the timer as its error, unless the worker's own error came first."""
        end = replace(end, is_kill_ours=True)
        age_ms = max(0, (end.at_ns - self.at_ns) // 1_000_000)
        is_survived = end.signal != self.signum and age_ms > CLEANUP_MS
        has_failed_before = end.error is not None and (end.error.before_exit_ms or 0) > age_ms
        if end.exit_code == 0 or is_survived or has_failed_before:
            return end
        return replace(end, error=ErrorRecord(self.text, "", age_ms))


class Watchdog:
    """The pending timers of one node's workers."""

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Callable[[], Path],
        files: FileThread,
        root: Callable[[], int],
    ) -> None:
        """Set the parameters; `begin` uses them.

        Args:
            environment: the agent's own; it turns the watchdog on, and may name the FIFO.
            folder: returns the agent's own folder.
            files: the thread for that one; it makes and removes the FIFO.
            root: returns the pid of the process below which all workers are.
        """
        self._environment = environment
        self._folder = folder
        self._files = files
        self._root = root
        self._file: TimerFile | None = None
        self._timers: dict[tuple[int, str], Timer] = {}
        self._workers: dict[int, int] = {}  # pid -> local rank
        self._expired: dict[int, Expiry] = {}  # pid of a worker -> why it was signalled
        self._logged: set[str] = set()
        self._handle: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Make the FIFO, if the environment asks for it, and listen to it.

        Raises:
            TimerFileRefused: the FIFO cannot be made.
        """
        if self._environment.get(SWITCH_ENV) != "1":
            return
        try:
            async with asyncio.timeout(MAKE_S_MAX):
                self._file = await self._files.run("making a FIFO", self._make, TimerFile.close)
        except OSError as error:  # a TimeoutError, or there is no thread
            given = self._environment.get(TIMERS_ENV, "")
            why = error.strerror or f"the file system does not answer within {MAKE_S_MAX:g} s"
            raise TimerFileRefused(given, why) from error
        asyncio.get_running_loop().add_reader(self._file, self._on_readable)

    def _make(self) -> TimerFile:
        return TimerFile(timer_file(self._environment, self._folder))

    def variables(self) -> Mapping[str, str]:
        """Return the variable with the path of the FIFO; nothing without a FIFO."""
        return {} if self._file is None else {TIMERS_ENV: self._file.path}

    def started(self, pid: int, local_rank: int) -> None:
        """Remember a worker."""
        self._workers[pid] = local_rank

    def ended(self, pid: int) -> Expiry | None:
        """Forget a worker and its timers; return the expiry for which it was signalled, if any."""
        self._workers.pop(pid, None)
        self._forget(pid)
        return self._expired.pop(pid, None)

    def swept(self) -> None:
        """Forget all timers, unread ones too: every process that could set one is dead."""
        self._read()
        self._timers.clear()
        self._arm()

    def close(self) -> None:
        """Stop listening, and remove the FIFO."""
        self._timers.clear()
        self._arm()
        if self._file is not None:
            asyncio.get_running_loop().remove_reader(self._file)
            with suppress(OSError):  # the thread stands still: the FIFO stays
                self._files.submit(self._file.close)
            self._file = None

    # --- requests ---

    def _on_readable(self) -> None:
        self._read()
        self._arm()

    def _read(self) -> None:
        for request in self._file.read() if self._file is not None else ():
            if request is None:
                self._skip("a line is not a request of a timer's client")
            elif request.expires_s < 0:
                self._timers.pop((request.pid, request.scope), None)
            else:
                self._set(request)

    def _set(self, request: Request) -> None:
        process = read_stat(request.pid)
        if process is None:
            self._skip("the process that set a timer is gone, or in another pid namespace")
            return
        key = (request.pid, request.scope)
        if len(self._timers) >= TIMERS_MAX and key not in self._timers:
            self._skip(f"more than {TIMERS_MAX} timers are pending")
            return
        left_s = request.expires_s - time.time()  # noqa: TID251  # the client's clock is this one
        now_s = asyncio.get_running_loop().time()
        due_s = now_s + left_s
        self._timers[key] = Timer(*key, process.start_ticks, now_s, due_s, request.signum)

    def _skip(self, why: str) -> None:
        """Log that a request is ignored, once for each reason."""
        if why not in self._logged:
            self._logged.add(why)
            path = self._file.path if self._file is not None else ""
            log.warning("timer_request_skipped", why=why, file=path)

    def _forget(self, pid: int) -> None:
        for key in [key for key in self._timers if key[0] == pid]:
            del self._timers[key]

    # --- expiry ---

    def _arm(self) -> None:
        """Wake up when the first timer is due."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._timers:
            due_s = min(timer.due_s for timer in self._timers.values())
            self._handle = asyncio.get_running_loop().call_at(due_s, self._expire)

    def _expire(self) -> None:
        self._read()  # a release may be waiting there
        now_s = asyncio.get_running_loop().time()
        due = [timer for timer in self._timers.values() if timer.due_s <= now_s]
        for pid, timers in groupby(sorted(due, key=_by_process), key=lambda timer: timer.pid):
            self._end_process(pid, list(timers), now_s)
        self._arm()

    def _end_process(self, pid: int, timers: list[Timer], now_s: float) -> None:
        """Signal one process, once, for the first of its timers that has a signal."""
        local_rank = self._find_worker(pid)
        for timer in timers:
            del self._timers[pid, timer.scope]
            then = self._signal(timer) if timer.signum > 0 else "nothing: it was set without signal"
            log.warning(
                "timer_expired",
                pid=pid,
                **({} if local_rank is None else {"local_rank": local_rank}),
                scope=timer.scope,
                late_ms=round((now_s - timer.due_s) * 1000),
                then=then,
            )
            if timer.signum > 0:
                self._forget(pid)
                return

    def _signal(self, timer: Timer) -> str:
        """Signal the process that set a timer; return what was done, for the log."""

        def is_target(pid: int) -> bool:
            process = read_stat(pid)
            if process is None or process.is_dead or process.start_ticks != timer.born_ticks:
                return False
            return is_descendant(pid, self._root())

        if not signal_verified(timer.pid, timer.signum, is_target):
            return "nothing: the process is gone, or none of this agent's"
        name = _name(timer.signum)
        if timer.pid in self._workers:
            within_s = max(0.0, timer.due_s - timer.set_s)
            text = (
                f"timer {timer.scope!r} expired: not released within {within_s:.1f} s; got {name}"
            )
            self._expired.setdefault(timer.pid, Expiry(text, timer.signum, time.monotonic_ns()))
        return f"{name} to this process"

    def _find_worker(self, pid: int) -> int | None:
        """Return the local rank of the worker that this process is or descends from, if any."""
        for worker_pid, local_rank in self._workers.items():
            if pid == worker_pid or is_descendant(pid, worker_pid):
                return local_rank
        return None


def _by_process(timer: Timer) -> tuple[int, float]:
    return timer.pid, timer.due_s


def _name(signum: int) -> str:
    return signal.Signals(signum).name if signum in set(signal.Signals) else f"signal {signum}"
