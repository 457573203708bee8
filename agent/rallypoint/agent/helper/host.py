"""The node agent's hold on its worker processes: a helper process, asked over a socket.

A process that has started gRPC must not fork, so the agent launches a helper (helper.py) before,
and the helper is the parent of all workers. This module speaks to it and turns what it says into
typed events.

Rules:
  * Each spawn is answered by exactly one Spawned or SpawnFailed, and each Spawned is followed by
    exactly one Exited. This holds when the helper dies, too.
  * Clean(token) says that no descendant of the helper is left, and comes after every Exited.
  * When the helper dies unasked, HelperLost comes at once. What it leaves behind is handed to the
    agent (see become_subreaper), which kills it; Exited of each worker, then Clean(ORPHANS) tell
    that all is gone. The host is of no use any more; launch() another, also when gRPC is loaded.
  * An agent that starts subprocesses of its own keeps them in its own session: a child elsewhere,
    younger than a helper that dies, is taken for an orphan of that helper.
  * Nothing here waits for the helper, and what cannot be written yet is queued up to a limit.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Self

from rallypoint.agent.descendants import (
    PR_SET_CHILD_SUBREAPER,
    Orphans,
    await_any_exit,
    end_orphans,
    prctl,
    read_stat,
)
from rallypoint.agent.frames import IGNORED_SIGNALS, LAST_SWEEP_MS, Decoder, encode
from rallypoint.agent.worker_events import (
    ORPHANS,
    Blocked,
    Clean,
    Exited,
    HelperLost,
    HostEvent,
    Spawned,
    SpawnFailed,
    SpawnRequest,
    parse_event,
    parse_exit,
)

__all__ = [
    "HostClosed",
    "HostStuck",
    "SpawnRequest",
    "WorkerHost",
    "WorkerHostError",
    "become_subreaper",
]

# Two spawns with the largest environment a kernel takes; the helper reads at once, so more unread
# means that it hangs.
MAX_UNSENT_BYTES = 64 * 1024 * 1024
# close() waits for the helper's own last sweep, and a little for it to end.
CLOSE_MARGIN_MS = 2_000
# How long one attempt to kill orphans blocks its thread; repeated until they are gone.
ORPHANS_LIMIT_MS = 2_000
_READ_BYTES = 64 * 1024
# The folder that holds `rallypoint`. Appended to the helper's path, so that it shadows nothing;
# imported and not run as a file, because only imported modules are compiled once and cached.
_IMPORT_ROOT = str(Path(__file__).resolve().parents[2])
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[2]); "
    "from rallypoint.agent.helper import main; main(int(sys.argv[1]))"
)

# Helpers of this process that live: orphans of one must not be mistaken for them.
_live_helpers: set[int] = set()


class WorkerHostError(Exception):
    """A request that the worker host cannot take."""


class HostClosed(WorkerHostError):
    """The host was closed, or its helper is lost: there is nobody to ask."""


class HostStuck(WorkerHostError):
    """The helper has not read what it was sent for so long that the queue is full.

    Attributes:
        unsent_bytes: what is waiting.
    """

    def __init__(self, unsent_bytes: int) -> None:
        """Carry the size of the queue."""
        super().__init__(f"{unsent_bytes} bytes wait for the helper process")
        self.unsent_bytes = unsent_bytes


def become_subreaper() -> None:
    """Let orphans of a dead helper become children of this process, where they can be found."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


class WorkerHost:
    """One helper process and the conversation with it."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        """Take a helper that was just started; use launch()."""
        stat = read_stat(process.pid)
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
        self._is_closed = False
        self._is_blocked_told = False
        self._recovery: asyncio.Future[Orphans] | None = None

    @classmethod
    def launch(cls) -> Self:
        """Start the helper and return at once; requests may follow immediately.

        Does not fork this process (no preexec_fn), so it is safe also where gRPC runs already.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # -X utf8: the wire is UTF-8 with surrogate escapes whatever the locale; see _to_wire.
        options = ["-I", "-S", "-X", "utf8"] + ["-B"] * sys.dont_write_bytecode
        arguments = [str(theirs.fileno()), _IMPORT_ROOT]
        # Blocked from its first instruction on, until it has said to ignore them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, *options, "-c", _PROGRAM, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=None if sys.stderr else subprocess.DEVNULL,  # the helper relies on 0..2
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ours.setblocking(False)
        _live_helpers.add(process.pid)
        return cls(process, ours)

    @property
    def pid(self) -> int:
        """The helper's process id."""
        return self._process.pid

    def attach(self, on_event: Callable[[HostEvent], None]) -> None:
        """Deliver events to `on_event`, in the running event loop, from now on."""
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._loop.add_reader(self._control, self._read)
        if self._unsent:
            self._loop.add_writer(self._control, self._flush)

    # --- requests ---

    def spawn(self, request: SpawnRequest) -> None:
        """Ask for a worker; Spawned or SpawnFailed answers.

        Raises:
            HostClosed, HostStuck: there is nobody to ask.
            OSError: the descriptors cannot be duplicated.
            FrameTooLarge: arguments and environment are beyond any kernel's limit.
        """
        frame = encode(
            {
                "type": "spawn",
                "id": request.worker_id,
                "argv": [_to_wire(argument) for argument in request.argv],
                "env": {_to_wire(key): _to_wire(value) for key, value in request.env.items()},
                "cwd": _to_wire(os.path.abspath(request.cwd)),
                "cpus": request.cpus,
            }
        )
        self._send(frame, (request.stdin_fd, request.stdout_fd, request.stderr_fd))
        self._requested.add(request.worker_id)

    def signal(
        self, signum: int, worker_ids: Collection[int] | None = None, *, alone: bool = False
    ) -> None:
        """Signal the process groups of some workers, or of all; the dead are passed over.

        One that comes before a worker's program runs is delivered when it does.

        Args:
            signum: the signal's number.
            worker_ids: whom; None: all.
            alone: signal the worker's own process, and nobody that it has started.

        Raises:
            HostClosed, HostStuck: there is nobody to ask.
        """
        ids = None if worker_ids is None else sorted(worker_ids)
        frame = {"type": "signal", "ids": ids, "signal": int(signum), "alone": alone}
        self._send(encode(frame))

    def sweep(self, token: int, limit_ms: int) -> None:
        """KILL everything the workers started; Clean(token) answers, perhaps after Blocked.

        Args:
            token: positive, comes back in the answer.
            limit_ms: milliseconds until Blocked tells what survives.

        Raises:
            HostClosed, HostStuck: there is nobody to ask.
        """
        if token <= ORPHANS:
            raise ValueError("a sweep's token must be positive")
        self._send(encode({"type": "sweep", "token": token, "limit_ms": limit_ms}))

    def arm_fence(self, at_ms: int) -> None:
        """Let the helper KILL everything once this instant has passed, unless it is moved before.

        No worker starts after it. Exited tells of each one; nothing else says that it happened.

        Args:
            at_ms: milliseconds of CLOCK_MONOTONIC; it takes the place of the one set before.

        Raises:
            HostClosed, HostStuck: there is nobody to ask.
        """
        self._send(encode({"type": "fence", "at_ms": at_ms}))

    async def close(self) -> None:
        """Let the helper kill everything and end; kill it if it does not. No event comes after."""
        loop = asyncio.get_running_loop()
        self._on_event = None
        self._hang_up()
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
        await loop.run_in_executor(None, self._end_helper, LAST_SWEEP_MS + CLOSE_MARGIN_MS)

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
                _close_all(fds)  # they went with the first byte
                if sent < len(rest):
                    self._unsent.appendleft((rest[sent:], ()))
        except OSError:  # the helper is gone; reading finds that out and says so
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
        except ValueError:  # our own helper talks nonsense: a bug; its workers cannot be led
            self._lose()
            raise
        for event in events:
            self._note(event)
            self._emit(event)
        if not data:
            self._lose()

    def _note(self, event: HostEvent) -> None:
        match event:
            case Spawned(worker_id, pid):
                self._requested.discard(worker_id)
                self._pids[worker_id] = pid
            case SpawnFailed(worker_id):
                self._requested.discard(worker_id)
            case Exited(worker_id):
                self._pids.pop(worker_id, None)

    def _emit(self, event: HostEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)

    def _hang_up(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._loop is not None:
            self._loop.remove_reader(self._control)
            self._loop.remove_writer(self._control)
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
            self._recovery = self._loop.run_in_executor(None, self._end_helper, 0)
            self._recovery.add_done_callback(self._finish_recovery)

    def _finish_recovery(self, recovery: asyncio.Future[Orphans]) -> None:
        if recovery.cancelled():
            return
        orphans = recovery.result()
        self._recovery = None
        for worker_id, pid in sorted(self._pids.items()):
            if pid not in orphans.survivors:
                del self._pids[worker_id]
                self._emit(parse_exit(worker_id, pid, orphans.statuses.get(pid)))
        if not orphans.survivors:
            self._emit(Clean(ORPHANS))
            return
        if not self._is_blocked_told:
            self._is_blocked_told = True
            self._emit(Blocked(ORPHANS, orphans.survivors))
        if self._on_event is not None:
            self._recover()

    def _end_helper(self, patience_ms: int) -> Orphans:
        """Wait for the helper, kill it if it stays, and what it left to us. Blocks: in a thread."""
        if self._process.poll() is None and not await_any_exit((self.pid,), patience_ms):
            self._process.kill()
        self._process.wait()
        _live_helpers.discard(self.pid)
        if self._process.returncode == 0:  # it ended as asked, after a sweep of its own
            return Orphans({}, ())
        return end_orphans(
            born_ticks=self._born_ticks, spared=_live_helpers, limit_ms=ORPHANS_LIMIT_MS
        )


def _to_wire(text: str) -> str:
    """Return the text whose UTF-8 is the bytes that this process's own encoding makes of it."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def _close_all(fds: Collection[int]) -> None:
    for fd in fds:
        os.close(fd)
