"""The agent's interface to its workers: the helper process, and the socket to it.

A process that has started gRPC must not fork. So the agent launches a helper (main.py) first, and
the helper is the parent of all workers. This module sends it requests and turns its answers into
typed events.

Rules:
  * Each spawn gets exactly one Spawned or SpawnFailed, and each Spawned is followed by exactly one
    Exited, even if the helper dies.
  * Clean(token) means that no descendant of the helper is left; it follows every Exited.
  * If the helper dies unexpectedly, HelperLost is reported at once. Its orphans are reparented to
    the agent (see become_subreaper), which kills them. Exited of each worker, then Clean(ORPHANS),
    report that all are gone. This host is then useless; launch() another, even if gRPC is loaded.
  * The agent keeps its other subprocesses in its own session, or in `spared_children`: any other
    child, younger than a helper that dies, counts as an orphan of that helper.
  * A helper that does not answer is killed (kill), which is the same as its unexpected death. The
    agent decides when: see round/helper_watch.py.
  * No request waits for the helper; what cannot be written yet is queued, up to a limit.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from rallypoint.agent.helper.descendants import (
    Orphans,
    await_any_exit,
    become_subreaper,
    end_orphans,
    has_variable,
    is_subreaper,
    kill_descendants,
    list_descendants,
    read_stat,
    spared_children,
)
from rallypoint.agent.helper.events import (
    ORPHANS,
    Blocked,
    Clean,
    Exited,
    Fenced,
    HelperLost,
    HostEvent,
    Pong,
    Spawned,
    SpawnFailed,
    SpawnRequest,
    parse_event,
    parse_exit,
)
from rallypoint.agent.helper.frames import LAST_SWEEP_MS, Decoder, encode
from rallypoint.agent.helper.processes import Run, Started, exec_helper, exec_server, fork_helper
from rallypoint.agent.helper.refusals import (
    HelperIrreplaceable,
    HostClosed,
    HostStuck,
    WorkerHostError,
)

__all__ = [
    "HelperIrreplaceable",
    "HostClosed",
    "HostStuck",
    "SpawnRequest",
    "WorkerHost",
    "WorkerHostError",
    "become_subreaper",
]

# Room for several spawns with the largest environment that a kernel takes. The helper reads at
# once, so a longer queue means that it hangs.
MAX_UNSENT_BYTES = 64 * 1024 * 1024
# close() waits for the helper's last sweep, and this much longer for its end.
CLOSE_MARGIN_MS = 2_000
# A helper dies of SIGKILL at once, unless it is in uninterruptible sleep.
DEATH_LIMIT_MS = 2_000
# How long one attempt to kill orphans blocks its thread; repeated until they are gone.
ORPHANS_LIMIT_MS = 2_000
_READ_BYTES = 64 * 1024


class WorkerHost:
    """One helper process, and the socket to it."""

    def __init__(self, start: Callable[[], Started], *, is_replaceable: bool = True) -> None:
        """Start a helper; see launch().

        Args:
            start: starts it.
            is_replaceable: it can be called again, after gRPC has started too.
        """
        process, control = start()
        control.setblocking(False)
        spared_children.add(process.pid)
        stat = read_stat(process.pid)
        self.mark = ""  # NAME=VALUE of all workers; without it, all children may be orphans
        self._start = start
        self._is_replaceable = is_replaceable
        self._process = process
        self._born_ticks = stat.start_ticks if stat else 0
        self._control = control
        self._decoder = Decoder()
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()  # frame rest, fds
        self._unsent_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_event: Callable[[HostEvent], None] | None = None
        self._requested: set[int] = set()  # worker ids with neither Spawned nor SpawnFailed yet
        self._pids: dict[int, int] = {}  # worker id -> pid, without Exited yet
        self._asked_ns: dict[int, int] = {}  # worker id -> first request to signal all, or to sweep
        self._awaits_pong = False
        self.fenced_ms: int | None = None  # the latest fence that it carries out
        self._is_closed = False
        self._is_blocked_reported = False
        self._recovery: asyncio.Future[Orphans] | None = None

    @classmethod
    def launch(cls) -> Self:
        """Start the helper and return at once; requests may follow immediately.

        Does not fork this process (no preexec_fn), so it is safe even after gRPC has started.
        """
        return cls(exec_helper)

    @classmethod
    def launch_server(cls, flags: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Start a helper that can also fork workers for pickled functions; as safe as launch().

        Args:
            flags: of its interpreter, and so of the workers'.
            environment: of the helper.
        """
        return cls(partial(exec_server, flags, environment))

    @classmethod
    def fork(cls, run: Run) -> Self:
        """Fork this process to become the helper, before it starts threads and gRPC.

        The helper cannot be replaced.

        Args:
            run: called in each worker.
        """
        return cls(partial(fork_helper, run), is_replaceable=False)

    @property
    def is_replaceable(self) -> bool:
        """False when it is a fork of this process."""
        return self._is_replaceable

    def replacement(self) -> WorkerHost:
        """Start a helper of the same kind, after this one is lost.

        Raises:
            HelperIrreplaceable: it was a fork of this process.
        """
        if not self._is_replaceable:
            raise HelperIrreplaceable(self.pid)
        host = WorkerHost(self._start)
        host.mark = self.mark
        return host

    @property
    def pid(self) -> int:
        """The helper's process id."""
        return self._process.pid

    @property
    def takes_requests(self) -> bool:
        """False once it was closed, or is known to be lost."""
        return not self._is_closed

    def attach(self, on_event: Callable[[HostEvent], None]) -> None:
        """Deliver events to `on_event`, in the running event loop, from now on."""
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._loop.add_reader(self._control, self._read)
        if self._unsent:
            self._loop.add_writer(self._control, self._flush)

    # --- requests ---

    def spawn(self, request: SpawnRequest) -> None:
        """Start a worker; Spawned or SpawnFailed answers.

        Raises:
            HostClosed, HostStuck: the helper takes no request.
            OSError: the descriptors cannot be duplicated.
            FrameTooLarge: arguments and environment exceed the limit of any kernel.
        """
        self._send(request.frame(), request.fds)
        self._requested.add(request.worker_id)

    def signal(
        self, signum: int, worker_ids: Collection[int] | None = None, *, alone: bool = False
    ) -> None:
        """Signal the process groups of some workers, or of all; ended workers are skipped.

        A signal that arrives before the worker's exec is delivered after it.

        Args:
            signum: the signal's number.
            worker_ids: workers to signal; None: all.
            alone: signal only the worker's process, not those that it has started.

        Raises:
            HostClosed, HostStuck: the helper takes no request.
        """
        ids = None if worker_ids is None else sorted(worker_ids)
        frame = {"type": "signal", "ids": ids, "signal": int(signum), "alone": alone}
        self._send(encode(frame))
        if ids is None and not alone:
            self._note_asked()

    def sweep(self, token: int, limit_ms: int) -> None:
        """KILL the workers and all that they started; Clean(token) answers, maybe after Blocked.

        Args:
            token: positive; the answer carries it.
            limit_ms: milliseconds until Blocked reports survivors.

        Raises:
            HostClosed, HostStuck: the helper takes no request.
        """
        if token <= ORPHANS:
            raise ValueError("a sweep's token must be positive")
        self._send(encode({"type": "sweep", "token": token, "limit_ms": limit_ms}))
        self._note_asked()

    def arm_fence(self, at_ms: int | None) -> None:
        """Let the helper KILL everything at this time, unless a later call moves it first.

        No worker starts after that time. Only the Exited of each worker reports it.

        Args:
            at_ms: milliseconds of CLOCK_MONOTONIC; replaces the earlier one. None: never.

        Raises:
            HostClosed, HostStuck: the helper takes no request.
        """
        self._send(encode({"type": "fence", "at_ms": at_ms}))

    def ping(self) -> None:
        """Ask for a sign of life; `is_silent` is false once it has come.

        Raises:
            HostClosed, HostStuck: the helper takes no request.
        """
        self._send(encode({"type": "ping"}))
        self._awaits_pong = True

    @property
    def is_silent(self) -> bool:
        """True while the last ping has no answer."""
        return self._awaits_pong

    def kill(self) -> None:
        """KILL a helper that does not answer, and so its workers; HelperLost reports it at once."""
        if self._is_closed:
            return
        self._process.kill()
        self._read()  # what it has sent is true
        if not self._is_closed:
            self._lose()

    async def close(self) -> None:
        """Let the helper kill everything and end; kill it if it does not. No event follows."""
        self._on_event = None
        self._hang_up()
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
        end = partial(self._end_helper, LAST_SWEEP_MS + CLOSE_MARGIN_MS)
        await _call_in_thread(end)

    def discard(self) -> None:
        """End a helper that was never attached; any other one is left alone. Blocks."""
        if self._loop is None and not self._is_closed:
            self._hang_up()
            self._end_helper(LAST_SWEEP_MS + CLOSE_MARGIN_MS)

    def _note_asked(self) -> None:
        """Note when the workers were to be signalled: a helper that dies cannot tell it."""
        now_ns = time.monotonic_ns()
        for worker_id in (*self._requested, *self._pids):
            self._asked_ns.setdefault(worker_id, now_ns)

    # --- the socket ---

    def _send(self, frame: bytes, fds: tuple[int, ...] = ()) -> None:
        if self._is_closed:
            raise HostClosed
        if self._unsent_bytes > MAX_UNSENT_BYTES:
            raise HostStuck(self._unsent_bytes)
        self._unsent.append((memoryview(frame), tuple(os.dup(fd) for fd in fds)))
        self._unsent_bytes += len(frame)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                rest, fds = self._unsent.popleft()
                try:
                    sent = socket.send_fds(self._control, [rest], list(fds), socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    self._unsent.appendleft((rest, fds))
                    break
                self._unsent_bytes -= sent
                _close_all(fds)  # sent with the first byte
                if sent < len(rest):
                    self._unsent.appendleft((rest[sent:], ()))
        except OSError:  # the helper is gone; the next read reports it
            _close_all(fds)
        if self._loop is None:
            return
        if self._unsent:
            self._loop.add_writer(self._control, self._flush)
        else:
            self._loop.remove_writer(self._control)

    def _read(self) -> None:
        try:
            data = self._control.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            events = [parse_event(message) for message in self._decoder.feed(data)]
        except ValueError:  # a bug in the helper: its workers cannot be controlled any more
            self._lose()
            raise
        for event in events:
            match event:
                case Pong():
                    self._awaits_pong = False
                case Fenced(at_ms=at_ms):
                    self.fenced_ms = at_ms
                case _:
                    self._record(event)
                    self._emit(event)
        if not data:
            self._lose()

    def _record(self, event: HostEvent) -> None:
        match event:
            case Spawned(worker_id, pid):
                self._requested.discard(worker_id)
                self._pids[worker_id] = pid
            case SpawnFailed(worker_id):
                self._requested.discard(worker_id)
                self._asked_ns.pop(worker_id, None)
            case Exited(worker_id):
                self._pids.pop(worker_id, None)
                self._asked_ns.pop(worker_id, None)

    def _emit(self, event: HostEvent) -> None:
        if self._on_event is None or self._loop is None:
            return
        try:
            self._on_event(event)
        except Exception as error:  # noqa: BLE001  # the root of every event: the next ones must come
            context = {"message": f"the handler of {event} failed", "exception": error}
            self._loop.call_exception_handler(context)

    def _hang_up(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._loop is not None:
            self._loop.remove_reader(self._control)
            self._loop.remove_writer(self._control)
        with suppress(OSError):  # it is gone; a fork of this process may have a copy of the socket
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        for _, fds in self._unsent:
            _close_all(fds)
        self._unsent.clear()

    # --- the end of the helper ---

    def _lose(self) -> None:
        self._hang_up()
        self._emit(HelperLost(self.pid))
        for worker_id in sorted(self._requested):
            self._emit(SpawnFailed(worker_id, errno.EPIPE, "the helper process died"))
        self._requested.clear()
        self._recover()

    def _recover(self) -> None:
        if self._loop is not None:
            self._recovery = _call_in_thread(partial(self._end_helper, 0))
            self._recovery.add_done_callback(self._finish_recovery)

    def _finish_recovery(self, recovery: asyncio.Future[Orphans]) -> None:
        if recovery.cancelled():
            return
        orphans = recovery.result()
        self._recovery = None
        for worker_id, pid in sorted(self._pids.items()):
            if pid not in orphans.survivors:
                del self._pids[worker_id]
                self._emit(self._orphan_exit(worker_id, pid, orphans.statuses.get(pid)))
        if not orphans.survivors:
            self._emit(Clean(ORPHANS))
            return
        if not self._is_blocked_reported:
            self._is_blocked_reported = True
            self._emit(Blocked(ORPHANS, orphans.survivors))
        if self._on_event is not None:
            self._recover()

    def _orphan_exit(self, worker_id: int, pid: int, status: int | None) -> Exited:
        asked_ns = self._asked_ns.pop(worker_id, None)
        return parse_exit(worker_id, pid, status, time.monotonic_ns(), asked_ns, was_killed=False)

    def _end_helper(self, patience_ms: int) -> Orphans:
        """Wait for the helper, kill it if needed, then its orphans. Blocks: run it in a thread."""
        if self._process.poll() is None and not await_any_exit((self.pid,), patience_ms):
            self._process.kill()
            if not await_any_exit((self.pid,), DEATH_LIMIT_MS):  # its workers have no sign to die
                kill_descendants(self.pid)
                return Orphans({}, (self.pid, *list_descendants(self.pid)))
        self._process.wait()
        spared_children.discard(self.pid)
        # 0: it ended on request, after its last sweep. Only a subreaper gets orphans.
        if self._process.returncode == 0 or not is_subreaper():
            return Orphans({}, ())
        return end_orphans(
            born_ticks=self._born_ticks,
            spared=spared_children,
            limit_ms=ORPHANS_LIMIT_MS,
            is_ours=self._is_ours,
        )

    def _is_ours(self, pid: int) -> bool:
        return not self.mark or pid in self._pids.values() or has_variable(pid, self.mark)


def _call_in_thread(call: Callable[[], Orphans]) -> asyncio.Future[Orphans]:
    """Return what a blocking call will return, made in a thread that no program waits for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Orphans] = loop.create_future()

    def finish(orphans: Orphans | None, error: Exception | None) -> None:
        if future.done():
            return
        if orphans is not None:
            future.set_result(orphans)
        elif error is not None:
            future.set_exception(error)

    def serve() -> None:
        orphans: Orphans | None = None
        failure: Exception | None = None
        try:
            orphans = call()
        except Exception as error:  # noqa: BLE001  # the caller gets it, in its own thread
            failure = error
        with suppress(RuntimeError):  # the loop has ended, and every wait with it
            loop.call_soon_threadsafe(finish, orphans, failure)

    try:
        threading.Thread(target=serve, name="helper's end", daemon=True).start()
    except RuntimeError:  # no thread can be started here: the loop stands still until the end
        serve()
    return future


def _close_all(fds: Collection[int]) -> None:
    for fd in fds:
        os.close(fd)
