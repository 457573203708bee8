"""A forkserver: imports modules, proves that it can be forked, and forks the workers of all rounds.

See sitecustomize.py for when it is imported, and for the frames on its sockets.
Standard library only, and Python 3.8 or newer. The agent never imports this file.
"""

from __future__ import annotations

import _socket
import gc
import os
import select
import stat
import sys
import time

TYPE_CHECKING = False  # importing typing would take a millisecond of every start
if TYPE_CHECKING:
    from typing import Any, NoReturn

if TYPE_CHECKING or __name__ != "rallypoint_forkserver":
    from rallypoint.agent.in_worker.preload import (
        rallypoint_checks,
        rallypoint_child,
        rallypoint_frames,
        rallypoint_main,
    )
else:  # in a forkserver: beside this file, which is first on sys.path
    import rallypoint_checks
    import rallypoint_child
    import rallypoint_frames
    import rallypoint_main

MAX_FRAME_BYTES = 16 * 1024 * 1024
LOOK_S = 60.0
"""How often it looks whether a file that it has imported was changed, if it is not asked."""
LAST_LOOK_S = 0.02
"""How long it looks once more at the user's own files before it forks. All files would take more
than a turn on a processor."""
LOOK_AGAIN_S = 1.0
"""The workers of a round are forked one after the other: one look is enough for all of them."""
PROBE_S_MAX = 20.0
"""Longest life of the child that proves that others will work."""
DESCRIPTORS = 5
"""That come with the frame that asks for a worker: three streams, report and gate."""


class Peer:
    """A Unix stream socket with frames on it."""

    def __init__(self, fd: int) -> None:
        """Take the socket."""
        os.set_inheritable(fd, False)
        self.socket = _socket.socket(fileno=fd)
        self.fds: list[int] = []
        """That have come with the frames."""
        self._data = b""

    def send(self, **message: Any) -> None:
        """Send a frame; end this process if no one wants it any more."""
        body = rallypoint_frames.encode(message).encode("ascii")
        try:
            self.socket.sendall(len(body).to_bytes(4, "big") + body)
        except OSError:
            os._exit(0)

    def receive(self) -> Any:
        """Return the next frame; end this process when the peer hangs up."""
        while True:
            size = int.from_bytes(self._data[:4], "big")
            if size > MAX_FRAME_BYTES:
                os._exit(1)
            if len(self._data) >= 4 + size and len(self._data) >= 4:
                body, self._data = self._data[4 : 4 + size], self._data[4 + size :]
                return rallypoint_frames.decode(body.decode("ascii"))
            self._read()

    @property
    def has_frame(self) -> bool:
        """Return whether a frame has arrived that was not returned."""
        size = int.from_bytes(self._data[:4], "big")
        return len(self._data) >= 4 and len(self._data) >= 4 + size

    def _read(self) -> None:
        try:
            part, ancillary, _, _ = self.socket.recvmsg(1 << 16, _socket.CMSG_SPACE(64 * 4))
        except OSError:
            part, ancillary = b"", []
        if not part:
            os._exit(0)
        for _, _, payload in ancillary:
            self.fds.extend(memoryview(payload).cast("i"))
        self._data += part


class Forkserver:
    """The interpreter that is forked."""

    def __init__(self, fds: list[int], environment: rallypoint_main.Environment) -> None:
        """Take the socket to the agent, and that to the helper if there is one."""
        self._agent = Peer(fds[0])
        self._helper = Peer(fds[1]) if len(fds) > 1 else None
        self._shown: dict[int, bytes] = {}
        """What each worker writes first, by descriptor."""
        self._stamps: list[tuple[str, rallypoint_checks.Stamp]] = []
        """Every file that was imported."""
        self._own_stamps: list[tuple[str, rallypoint_checks.Stamp]] = []
        """Those that are not installed: the user's own."""
        self._formats: dict[int, int] = {}
        """What kind of file stdout and stderr are, by descriptor."""
        self._files: list[int] = []
        """Descriptors of files that imports have opened."""
        self._looked_s = 0.0
        self._child_handler: Any = None
        """What imports let the worker do when a child of its ends."""
        self._environment = environment
        self._argv = list(sys.argv)

    def serve(self) -> None:
        """Import what the agent asks for; return in each worker that is forked then.

        This process ends if anything fails before: after an exception, Python would run the main
        program, outside of any round.
        """
        pid = os.getpid()
        try:
            self._agent.send(type="hello", python=".".join(map(str, sys.version_info[:3])))
            prepare = self._agent.receive()
            if not rallypoint_main.is_program(prepare["program"]):
                self._end("PYTHON_EXEC starts another Python program first, or adds arguments")
            self._prepare(prepare["modules"], prepare["calls"], prepare["path"])
            for name, text in self._agent.receive()["shown"].items():
                self._shown[int(name)] = text.encode("utf-8", "surrogateescape")
            self._serve()
        except BaseException as error:  # noqa: BLE001 - an import may have set a signal handler
            if os.getpid() != pid:
                os._exit(1)
            self._end(f"{type(error).__name__}: {error}", 1)
        for fd, data in self._shown.items():
            try:
                while data:
                    data = data[os.write(fd, data) :]
            except OSError:  # no process reads it any more
                pass

    def _serve(self) -> None:
        """Do what the agent and the helper ask for; return in each worker that is forked."""
        assert self._helper is not None
        gc.collect()
        gc.freeze()  # the collector writes into what it looks at: each worker would get a copy
        while True:
            while self._helper.has_frame:
                if self._fork(self._helper.receive()):
                    return
            wait_s = 0.0 if self._agent.has_frame else LOOK_S
            ready, _, _ = select.select((self._agent.socket, self._helper.socket), (), (), wait_s)
            if self._agent.has_frame or self._agent.socket in ready:
                self._agent.receive()  # whatever it is, it asks for a look
            if self._helper.socket in ready:
                self._helper._read()
            else:
                self._look(self._stamps)

    # --- imports ---

    def _prepare(self, modules: list[str], calls: list[str], path: str | None) -> None:
        folder = rallypoint_checks.find_folder()
        opened = set(rallypoint_checks.list_open())
        streams = rallypoint_checks.find_streams()
        self._formats = {fd: _format_of(fd) for fd in (1, 2)}
        began_ns = time.monotonic_ns()
        reads, stamps = rallypoint_checks.Reads(), rallypoint_checks.Stamps()
        self._main = rallypoint_main.Main(path)
        failed: list[dict[str, str]] = []
        refusal = culprit = ""
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
            refusal = reads.find() or rallypoint_checks.find_hindrance()
            if refusal:
                culprit = name
                break
        reads.end()
        self._main.end()
        self._stamps, self._own_stamps = stamps.end()
        refusal = refusal or rallypoint_checks.find_refusal(opened, streams, folder)
        self._files = rallypoint_checks.list_files(opened)
        self._child_handler = rallypoint_child.take_child_handler()
        refusal = refusal or rallypoint_child.probe(PROBE_S_MAX)
        _flush()
        self._agent.send(
            type="ready",
            failed=failed,
            took_ms=(time.monotonic_ns() - began_ns) // 1_000_000,
            refusal=refusal,
            culprit=culprit,
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

    # --- workers ---

    def _fork(self, frame: Any) -> bool:
        """Fork the worker that a frame asks for; return whether this process is the worker."""
        assert self._helper is not None
        now_s = time.monotonic()
        if now_s - self._looked_s > LOOK_AGAIN_S:
            self._looked_s = now_s
            self._look(self._own_stamps, LAST_LOOK_S)
        fds, self._helper.fds = self._helper.fds[:DESCRIPTORS], self._helper.fds[DESCRIPTORS:]
        if len(fds) != DESCRIPTORS:
            self._end("an import has left no descriptor free for the output of a worker")
        pid = rallypoint_child.fork_twice()
        if pid == 0:
            self._become_worker(frame, fds)
            return True
        for fd in fds:
            os.close(fd)
        if pid > 0:
            self._helper.send(type="forked", id=frame["id"], pid=pid)
        else:
            text = os.strerror(-pid)
            self._helper.send(type="fork_failed", id=frame["id"], errno=-pid, message=text)
        return False

    def _become_worker(self, frame: Any, fds: list[int]) -> None:
        """Wait for the gate, and make this process what a fresh interpreter would be."""
        *streams, report_fd, gate_fd = fds
        try:
            assert self._helper is not None
            for peer in (self._agent, self._helper):
                peer.socket.close()
            for fd in self._helper.fds:  # of the next worker, whose request has arrived, too
                os.close(fd)
            rallypoint_child.enter(gate_fd, frame["helper"], frame["cpus"])
            for fd in self._files:
                rallypoint_child.reopen(fd)
            for target, fd in enumerate(streams):
                os.dup2(fd, target, inheritable=True)
                os.close(fd)
            rallypoint_main.reopen_stdin()
            for fd, name in ((1, "stdout"), (2, "stderr")):
                if _format_of(fd) != self._formats[fd]:
                    rallypoint_main.reopen_output(fd, name)
            self._main.forget()
            self._environment.replace(frame["env"])
            rallypoint_main.set_arguments(self._argv, frame["argv"])
            rallypoint_child.renew()
            rallypoint_child.give_back(self._child_handler)
        except BaseException as error:  # noqa: BLE001 - the copy must not run on as a second server
            code = getattr(error, "errno", None) or 22
            os.write(report_fd, f"{code} {type(error).__name__}: {error}".encode()[:4096])
            os._exit(127)
        rallypoint_child.report_start(report_fd, gate_fd)

    def _end(self, why: str, code: int = 0) -> NoReturn:
        """Tell the agent why this forkserver cannot be used, and end."""
        self._agent.send(type="stale", why=why)
        os._exit(code)


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


def _format_of(fd: int) -> int:
    return stat.S_IFMT(os.fstat(fd).st_mode)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S110 - closed, or replaced by an import
            pass
