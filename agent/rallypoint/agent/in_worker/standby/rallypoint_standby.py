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
    from typing import Any, NoReturn

if TYPE_CHECKING or __name__ != "rallypoint_standby":
    from rallypoint.agent.in_worker.standby import (
        rallypoint_checks,
        rallypoint_frames,
        rallypoint_main,
        rallypoint_priority,
    )
else:  # in a standby: beside this file, which is first on sys.path
    import rallypoint_checks
    import rallypoint_frames
    import rallypoint_main
    import rallypoint_priority

MAX_FRAME_BYTES = 16 * 1024 * 1024
KEPT_BYTES = 64 * 1024
"""How much output of the imports is kept, for each of stdout and stderr."""
LOOK_S = 60.0
"""How often a standby looks whether a file that it has imported was changed, if it is not asked."""
LAST_LOOK_S = 0.02
"""How long it looks once more at the user's own files before it runs. All files would take more
than a turn on a processor, and the next turn may come too late for an answer."""
HIGH_FD = 64
"""Own descriptors are above this number if the limit allows it; the socket is just below."""
STREAMS = 3
"""Descriptors that come with the frame that asks for a worker."""


class Standby:
    """The interpreter that waits."""

    def __init__(self, fd: int, environment: rallypoint_main.Environment) -> None:
        """Take the socket to the agent."""
        os.set_inheritable(fd, False)
        self._socket = _socket.socket(fileno=fd)
        self._fds: list[int] = []
        self._kept: list[tuple[int, int]] = []
        self._stamps: list[tuple[str, rallypoint_checks.Stamp]] = []
        """Every file that was imported."""
        self._own_stamps: list[tuple[str, rallypoint_checks.Stamp]] = []
        """Those that are not installed: the user's own."""
        self._priority = rallypoint_priority.Priority()
        self._environment = environment
        self._argv = list(sys.argv)

    def wait(self) -> None:
        """Import what the agent asks for, then return when this process is a worker.

        It ends if anything fails before: after an exception, Python would run the main program,
        outside of any round.
        """
        try:
            run = self._wait()
            kept = self._become_worker(run["environ"], run["argv"], run["shown"])
            self._send(type="running")
        except BaseException as error:  # noqa: BLE001 - an import may have set a signal handler
            self._end(f"{type(error).__name__}: {error}", 1)
        self._socket.close()
        for fd, data in kept.items():
            try:
                while data:
                    data = data[os.write(fd, data) :]
            except OSError:  # no process reads it any more
                pass

    def _wait(self) -> Any:
        """Return the frame that asks for a worker."""
        self._send(type="hello", python=".".join(map(str, sys.version_info[:3])))
        prepare = self._receive()
        if not rallypoint_main.is_program(prepare["program"]):
            self._end("PYTHON_EXEC starts another Python program first, or adds arguments")
        self._keep_output()
        self._priority.lower()
        self._prepare(prepare["modules"], prepare["calls"], prepare["path"])
        frame = self._receive()
        while frame["type"] == "look":
            self._look(self._stamps)
            frame = self._receive()
        self._look(self._own_stamps, LAST_LOOK_S)
        return frame

    # --- imports ---

    def _prepare(self, modules: list[str], calls: list[str], path: str | None) -> None:
        folder = rallypoint_checks.find_folder()
        opened = set(rallypoint_checks.list_open())
        streams = rallypoint_checks.find_streams()
        began_ns = time.monotonic_ns()
        reads, stamps = rallypoint_checks.Reads(), rallypoint_checks.Stamps()
        self._main = rallypoint_main.Main(path)
        failed: list[dict[str, str]] = []
        pid = os.getpid()
        for name, act in [(name, _import) for name in modules] + [(call, _call) for call in calls]:
            try:
                act(name)
            except BaseException as error:  # noqa: BLE001 - a module may call sys.exit
                if os.getpid() != pid:  # an import has forked this process, which ends here
                    _flush()
                    os._exit(_exit_code(error))
                failed.append({"name": name, "error": f"{type(error).__name__}: {error}"})
            if os.getpid() != pid:  # the process that it has forked returns from the import, too
                self._end("an import forks a process that continues with the program")
        self._main.end()
        self._stamps, self._own_stamps = stamps.end()
        refusal = rallypoint_checks.find_refusal(opened, streams, folder) or reads.end()
        # A process that waits costs nothing, and should answer at once.
        refusal = refusal or self._priority.restore()
        _flush()
        self._send(
            type="ready",
            failed=failed,
            took_ms=(time.monotonic_ns() - began_ns) // 1_000_000,
            refusal=refusal,
        )

    def _look(
        self, stamps: list[tuple[str, rallypoint_checks.Stamp]], limit_s: float | None = None
    ) -> None:
        """End this process if one of these files has changed since it was imported."""
        began_s = time.monotonic()
        for path, stamp in stamps:
            if rallypoint_checks.stamp(path) != stamp:
                self._end(path + " has changed")
            if limit_s is not None and time.monotonic() - began_s > limit_s:
                break  # the rest was looked at within LOOK_S

    # --- output ---

    def _keep_output(self) -> None:
        """Let output of the imports to a file wait there; other output the agent keeps."""
        for fd in (1, 2):
            if stat.S_ISREG(os.fstat(fd).st_mode):
                self._kept.append((fd, _move_up(os.dup(fd))))

    def _take_output(self) -> dict[int, bytes]:
        """Return what the imports have written to files as stdout and stderr."""
        _flush()
        kept: dict[int, bytes] = {}
        for fd, reader in self._kept:
            kept[fd] = os.pread(reader, KEPT_BYTES, 0)
            os.close(reader)
        return kept

    # --- the end of the wait ---

    def _become_worker(
        self, environ: dict[str, str], argv: list[str], shown: dict[str, str]
    ) -> dict[int, bytes]:
        """Take what the agent has sent; return what to show first, by descriptor."""
        if len(self._fds) != STREAMS:
            raise OSError("an import has left no descriptor free for the output of a worker")
        kept = self._take_output()
        for name, text in shown.items():  # pipes and terminals, whose other ends the agent has
            kept[int(name)] = text.encode("utf-8", "surrogateescape")
        for target, fd in enumerate(self._fds):
            os.dup2(fd, target, inheritable=True)
        for fd in self._fds:
            os.close(fd)
        rallypoint_main.reopen_stdin()
        self._main.forget()
        self._environment.replace(environ)
        rallypoint_main.set_arguments(self._argv, argv)
        return kept

    # --- the socket ---

    def _send(self, **message: Any) -> None:
        body = rallypoint_frames.encode(message).encode("ascii")
        try:
            self._socket.sendall(len(body).to_bytes(4, "big") + body)
        except OSError:  # the agent does not want this standby any more
            os._exit(0)

    def _end(self, why: str, code: int = 0) -> NoReturn:
        """Tell the agent why this standby cannot be used, and end."""
        self._send(type="stale", why=why)
        os._exit(code)

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
                self._look(self._stamps)
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


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 255
    return 1


def _move_up(fd: int) -> int:
    """Return the file under a high number: what an import opens has the number that it expects."""
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except (OSError, ValueError):  # the limit is lower
        return fd
    os.close(fd)
    return moved


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S110 - closed, or replaced by an import
            pass
