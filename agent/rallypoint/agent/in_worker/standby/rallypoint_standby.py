"""The end of a standby's socket: imports modules, waits, and becomes a worker.

See sitecustomize.py for when it is imported, and for the frames on the socket.
Standard library only, and Python 3.8 or newer. The agent never imports this file.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import stat
import sys
import time

TYPE_CHECKING = False  # importing typing would take a millisecond of every start
if TYPE_CHECKING:
    from typing import Any

if TYPE_CHECKING or __name__ != "rallypoint_standby":
    from rallypoint.agent.in_worker.standby import (
        rallypoint_checks,
        rallypoint_frames,
        rallypoint_main,
    )
else:  # in a standby: beside this file, which is first on sys.path
    import rallypoint_checks
    import rallypoint_frames
    import rallypoint_main

MAX_FRAME_BYTES = 16 * 1024 * 1024
KEPT_BYTES = 64 * 1024
"""How much output of the imports is kept, for each of stdout and stderr."""
PIPE_BYTES = 1024 * 1024
"""Room for output of the imports in a pipe; an import that prints more never ends."""
LOOK_S = 60.0
"""How often a standby looks whether a file that it has imported was changed."""
LAST_LOOK_S = 0.02
"""How long it looks once more before it runs; the user's own files come first."""
HIGH_FD = 64
"""Own descriptors are above this number if the limit allows it; the socket is just below."""
F_SETPIPE_SZ = 1031  # fcntl has it since Python 3.10


class Standby:
    """The interpreter that waits."""

    def __init__(self, fd: int, environment: rallypoint_main.Environment) -> None:
        """Take the socket to the agent."""
        os.set_inheritable(fd, False)
        self._socket = _socket.socket(fileno=fd)
        self._fds: list[int] = []
        self._kept: list[tuple[int, int, bool]] = []
        self._stamps: list[tuple[str, rallypoint_checks.Stamp]] = []
        self._priority: tuple[int, os.sched_param] | None = None
        self._environment = environment

    def wait(self) -> None:
        """Import what the agent asks for, then return when this process is a worker."""
        self._send(type="hello", python=".".join(map(str, sys.version_info[:3])))
        prepare = self._receive()
        self._keep_output()
        self._yield_processors()
        self._prepare(prepare["modules"], prepare["calls"], prepare["path"])
        run = self._receive()
        changed = self._find_changed(LAST_LOOK_S)
        if changed:
            self._end_stale(changed)
        self._become_worker(run["environ"], run["argv"], run["shown"])

    # --- imports ---

    def _prepare(self, modules: list[str], calls: list[str], path: str | None) -> None:
        folder = rallypoint_checks.find_folder()
        opened = set(rallypoint_checks.list_open())
        began_ns = time.monotonic_ns()
        reads = rallypoint_checks.Reads()
        self._main = rallypoint_main.Main(path)
        failed: list[dict[str, str]] = []
        for name, act in [(name, _import) for name in modules] + [(call, _call) for call in calls]:
            try:
                act(name)
            except BaseException as error:  # noqa: BLE001 - a module may call sys.exit
                failed.append({"name": name, "error": f"{type(error).__name__}: {error}"})
        self._main.end()
        self._stamps = rallypoint_checks.stamp_modules()
        refusal = rallypoint_checks.find_refusal(opened, folder) or reads.end()
        self._want_processors()  # who waits costs nothing, and answers at once
        self._send(
            type="ready",
            failed=failed,
            took_ms=(time.monotonic_ns() - began_ns) // 1_000_000,
            refusal=refusal,
        )

    def _find_changed(self, limit_s: float | None = None) -> str:
        """Return a file that has changed since it was imported, or ""."""
        began_s = time.monotonic()
        for path, stamp in self._stamps:
            if rallypoint_checks.stamp(path) != stamp:
                return path
            if limit_s is not None and time.monotonic() - began_s > limit_s:
                break  # the rest was looked at within LOOK_S
        return ""

    def _end_stale(self, path: str) -> None:
        self._send(type="stale", why=f"{path} has changed")
        os._exit(0)

    # --- output ---

    def _keep_output(self) -> None:
        """Let the output of the imports wait in its pipe, or its file, for the worker's."""
        for fd in (1, 2):
            mode = os.fstat(fd).st_mode
            if stat.S_ISFIFO(mode):
                reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
                try:
                    fcntl.fcntl(reader, F_SETPIPE_SZ, PIPE_BYTES)
                except OSError:  # this user's pipes have no more room
                    pass
                self._kept.append((fd, _move_up(reader), False))
            elif stat.S_ISREG(mode):
                self._kept.append((fd, _move_up(os.dup(fd)), True))

    def _take_output(self) -> dict[int, bytes]:
        """Return what the imports have written to stdout and stderr."""
        kept: dict[int, bytes] = {}
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # noqa: BLE001, S110 - closed, or replaced by an import
                pass
        for fd, reader, is_file in self._kept:
            try:
                kept[fd] = os.pread(reader, KEPT_BYTES, 0) if is_file else _read(reader)
            except BlockingIOError:
                kept[fd] = b""
            os.close(reader)
        return kept

    # --- priority ---

    def _yield_processors(self) -> None:
        """Run only when no other process wants a processor, if this can be taken back."""
        policy = os.sched_getscheduler(0)
        if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
            return
        parameters = os.sched_getparam(0)
        self._priority = policy, parameters
        can_return = _can_return(policy, parameters)
        os.sched_setscheduler(0, os.SCHED_IDLE if can_return else os.SCHED_BATCH, parameters)

    def _want_processors(self) -> None:
        if self._priority is None:
            return
        policy, parameters = self._priority
        # Every thread has a priority, those of libraries too.
        for task in os.listdir("/proc/self/task"):
            try:
                os.sched_setscheduler(int(task), policy, parameters)
            except ProcessLookupError:  # a thread of a library that has just ended
                pass

    # --- the end of the wait ---

    def _become_worker(
        self, environ: dict[str, str], argv: list[str], shown: dict[str, str]
    ) -> None:
        kept = self._take_output()
        for name, text in shown.items():  # terminals, whose other end the agent has
            kept[int(name)] = text.encode("utf-8", "surrogateescape")
        for target, fd in enumerate(self._fds[:3]):
            os.dup2(fd, target, inheritable=True)
        for fd in self._fds:
            os.close(fd)
        rallypoint_main.reopen_stdin()
        self._main.forget()
        self._environment.replace(environ)
        rallypoint_main.set_arguments(argv)
        self._send(type="running")
        self._socket.close()
        for fd, data in kept.items():
            try:
                while data:
                    data = data[os.write(fd, data) :]
            except OSError:  # no process reads it any more
                pass

    # --- the socket ---

    def _send(self, **message: Any) -> None:
        body = rallypoint_frames.encode(message).encode("ascii")
        try:
            self._socket.sendall(len(body).to_bytes(4, "big") + body)
        except OSError:  # the agent does not want this standby any more
            os._exit(0)

    def _receive(self) -> Any:
        """Return the next message; ends this process when the agent hangs up."""
        size = int.from_bytes(self._receive_bytes(4), "big")
        if size > MAX_FRAME_BYTES:
            os._exit(1)
        return rallypoint_frames.decode(self._receive_bytes(size).decode("ascii"))

    def _receive_bytes(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            self._socket.settimeout(LOOK_S)
            try:
                part, ancillary, _, _ = self._socket.recvmsg(
                    min(count - len(data), 65536), _socket.CMSG_SPACE(16 * 4)
                )
            except _socket.timeout:
                changed = self._find_changed()
                if changed:
                    self._end_stale(changed)
                continue
            except OSError:
                part = b""
            if not part:
                os._exit(0)
            for _, _, payload in ancillary:
                self._fds.extend(memoryview(payload).cast("i"))
            data += part
        return data


def _import(name: str) -> None:
    __import__(name)


def _call(name: str) -> None:
    module, _, path = name.partition(":")
    __import__(module)
    function: Any = sys.modules[module]
    for part in path.split("."):
        function = getattr(function, part)
    function()


def _can_return(policy: int, parameters: os.sched_param) -> bool:
    """Return whether a process of this user may leave SCHED_IDLE: one of them tries.

    The kernel asks for CAP_SYS_NICE outside of any user namespace, or RLIMIT_NICE.
    """
    child = os.fork()
    if child == 0:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, parameters)
            os.sched_setscheduler(0, policy, parameters)
        except OSError:
            os._exit(1)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _move_up(fd: int) -> int:
    """Return the file under a high number: what an import opens has the number that it expects."""
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except (OSError, ValueError):  # the limit is lower
        return fd
    os.close(fd)
    return moved


def _read(fd: int) -> bytes:
    data = b""
    while len(data) < KEPT_BYTES:
        try:
            part = os.read(fd, KEPT_BYTES - len(data))
        except BlockingIOError:
            break
        if not part:
            break
        data += part
    return data
