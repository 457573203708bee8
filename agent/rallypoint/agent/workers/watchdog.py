"""The watchdog of `torch.distributed.elastic.timer`: ends a process that did not get on in time.

A worker, or a process below it, writes a line into a FIFO when it begins something that must end in
time, and another when that has ended:

    {"version": 1, "pid": 7, "scope_id": "step", "expiration_time": 1700000000.5, "signal": 9}

`expiration_time` is Unix time in seconds; a negative one releases the timer. What counts from then
on is how much of it was left when the line came, by the monotonic clock: a clock that is set
meanwhile expires nothing. Only the process that wrote is signalled, and only if it is a descendant
of the agent's helper; with a signal of 0 or less its timers are only logged.

Nothing is polled: the event loop says when there is something to read, and one timer of its own is
due with the first. What is still unread then comes first, since it may be the release.

Source of the protocol: torch 2.13, `FileTimerClient`.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rallypoint.agent.core.model import ErrorRecord
from rallypoint.agent.descendants import is_descendant, read_stat, signal_verified
from rallypoint.agent.environ import TIMERS_ENV
from rallypoint.wire.log import get_logger

log = get_logger()

SWITCH_ENV = "TORCHELASTIC_ENABLE_FILE_TIMER"
"""1: there is a watchdog."""
WORKER_ENV = "TORCHELASTIC_RUN_ID"
"""Set for whatever runs in a worker, torchrun's or ours."""
TIMERS_MAX = 16_384
"""Pending ones: a worker has a few, each of its data loaders, too; more is a leak of a script."""
LINE_BYTES_MAX = select.PIPE_BUF
"""What a client writes in one piece, so that lines of several never mix."""
CLEANUP_MS = 10_000
"""A worker that handles the signal of its timer and lives longer than this has survived it."""
_READ_BYTES = 65_536
"""What a pipe holds. No more is taken in one go: a client that never stops must not hold us up."""


class TimerFileRefused(Exception):
    """The FIFO cannot be where the environment wants it."""

    def __init__(self, path: str, why: str) -> None:
        """Carry the path, and say what is wrong with it."""
        super().__init__(f"{TIMERS_ENV}={path}: {why}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Request:
    """One line of a client."""

    pid: int
    scope: str
    expires_s: float
    """Unix time; negative: released. Never NaN."""
    signum: int
    """0 or less: do not signal."""


@dataclass(frozen=True, slots=True)
class Timer:
    """One that is pending. Times are seconds of the event loop's clock."""

    pid: int
    scope: str
    born_ticks: int
    """When the process began: a later one with its number is another."""
    set_s: float
    due_s: float
    signum: int


@dataclass(frozen=True, slots=True)
class Expiry:
    """A worker was signalled because a timer of its expired."""

    text: str
    signum: int
    at_ns: int
    """Monotonic time."""

    def explain(
        self, error: ErrorRecord | None, *, signum: int | None, seen_ns: int
    ) -> ErrorRecord | None:
        """Return why the worker has failed: of the timer, or of `error` where that came first.

        Args:
            error: what the worker itself has left.
            signum: of what it died, if it died of a signal.
            seen_ns: when its end was seen, by the monotonic clock.
        """
        age_ms = max(0, (seen_ns - self.at_ns) // 1_000_000)
        is_survived = signum != self.signum and age_ms > CLEANUP_MS
        if is_survived or (error is not None and (error.before_exit_ms or 0) > age_ms):
            return error
        return ErrorRecord(self.text, "", age_ms)


def timer_file(environment: Mapping[str, str], folder: Callable[[], Path]) -> str:
    """Return where the FIFO has to be, an absolute path; empty when there is to be none.

    Args:
        environment: the agent's own.
        folder: returns a folder of the agent's own, for want of another place.

    Raises:
        TimerFileRefused: there is neither.
    """
    if environment.get(SWITCH_ENV) != "1":
        return ""
    # In a worker it is the file of the launcher around this one, which reads it already.
    given = "" if WORKER_ENV in environment else environment.get(TIMERS_ENV)
    try:
        return os.path.abspath(given or folder() / "timers")
    except OSError as error:
        raise TimerFileRefused("", error.strerror or str(error)) from error


def parse_request(line: bytes) -> Request | None:
    """Return what a line says, or None when it is none of a client's."""
    try:
        match json.loads(line):
            case {
                "pid": int(pid),
                "scope_id": str(scope),
                "expiration_time": int() | float() as expires,
                "signal": int(signum),
            } if (
                pid > 1 and signum < signal.NSIG and not (expires_s := float(expires)) != expires_s
            ):
                return Request(pid, scope, expires_s, signum)
    except (ValueError, OverflowError, RecursionError):
        pass
    return None


class Timers:
    """The pending timers of one node's workers, and the FIFO through which they come."""

    def __init__(self, root: Callable[[], int]) -> None:
        """Begin without a FIFO; see `open`.

        Args:
            root: returns the pid of the process below which all workers are.
        """
        self.path = ""
        self._root = root
        self._fd = -1
        self._identity = (0, 0)
        self._rest = b""
        self._is_skipping = False
        """The rest of a line that is too long comes next."""
        self._timers: dict[tuple[int, str], Timer] = {}
        self._workers: dict[int, int] = {}  # pid -> local rank
        self._expired: dict[int, Expiry] = {}  # pid of a worker -> why it was signalled
        self._told: set[str] = set()
        self._handle: asyncio.TimerHandle | None = None

    def open(self, path: str) -> None:
        """Make the FIFO, in place of one that nobody reads any more, and listen to it.

        Raises:
            TimerFileRefused: something else is there, or somebody else's, or nothing can be.
        """
        try:
            self._fd = _open_fifo(path)
        except OSError as error:
            raise TimerFileRefused(path, error.strerror or str(error)) from error
        self.path, self._identity = path, _identity(os.fstat(self._fd))
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def started(self, pid: int, local_rank: int) -> None:
        """Note a worker."""
        self._workers[pid] = local_rank

    def ended(self, pid: int) -> Expiry | None:
        """Forget a worker and its timers; return why it was signalled here, if it was."""
        self._workers.pop(pid, None)
        self._forget(pid)
        return self._expired.pop(pid, None)

    def clear(self) -> None:
        """Forget all timers, also those that were not read yet: nobody who set one lives."""
        if self._fd >= 0:
            self._take()
        self._timers.clear()
        self._arm()

    def close(self) -> None:
        """Stop listening, and remove the FIFO if it is still the one that was made here."""
        self._timers.clear()
        self._arm()
        if self._fd < 0:
            return
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        try:
            if _identity(os.lstat(self.path)) == self._identity:
                os.unlink(self.path)
        except OSError:
            pass  # somebody was faster

    # --- what clients say ---

    def _read(self) -> None:
        self._take()
        self._arm()

    def _take(self) -> None:
        """Read what has come."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take_line(line)
        if len(self._rest) > LINE_BYTES_MAX:
            self._is_skipping, self._rest = True, b""

    def _take_line(self, line: bytes) -> None:
        is_cut, self._is_skipping = self._is_skipping, False
        request = None if is_cut or len(line) > LINE_BYTES_MAX else parse_request(line)
        if request is None:
            self._skip("a line is no request of a timer's client")
        elif request.expires_s < 0:
            self._timers.pop((request.pid, request.scope), None)
        else:
            self._set(request)

    def _set(self, request: Request) -> None:
        process = read_stat(request.pid)
        if process is None:
            self._skip("the process that set a timer is gone, or counted in another namespace")
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
        """Say once for each reason that requests are not heeded."""
        if why not in self._told:
            self._told.add(why)
            log.warning("timer_request_skipped", why=why, file=self.path)

    def _forget(self, pid: int) -> None:
        for key in [key for key in self._timers if key[0] == pid]:
            del self._timers[key]

    # --- what is due ---

    def _arm(self) -> None:
        """Be called when the first of the timers is due."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._timers:
            due_s = min(timer.due_s for timer in self._timers.values())
            self._handle = asyncio.get_running_loop().call_at(due_s, self._expire)

    def _expire(self) -> None:
        self._take()  # a release may wait there
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
        """Signal the process that has set a timer; return what was done."""

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
        """Return the local rank of the worker that a process is or is below; None: of none."""
        for worker_pid, local_rank in self._workers.items():
            if pid == worker_pid or is_descendant(pid, worker_pid):
                return local_rank
        return None


def _by_process(timer: Timer) -> tuple[int, float]:
    return timer.pid, timer.due_s


def _name(signum: int) -> str:
    return signal.Signals(signum).name if signum in set(signal.Signals) else f"signal {signum}"


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _open_fifo(path: str) -> int:
    """Make a FIFO and open it so that neither end ever waits, and that it never ends.

    Raises:
        OSError, TimerFileRefused: it cannot be there.
    """
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            raise TimerFileRefused(path, "it exists and is no FIFO") from None
        if _has_reader(path):
            raise TimerFileRefused(path, "it is in use: give each agent one of its own") from None
        os.unlink(path)
        os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _has_reader(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    return True
