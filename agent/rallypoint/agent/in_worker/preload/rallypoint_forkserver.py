"""A forkserver: imports modules, proves that it can be forked, and forks the workers of all rounds.

See sitecustomize.py, also for the messages on its sockets.
"""

from __future__ import annotations

import _socket
import errno
import gc
import json
import operator
import os
import select
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

if TYPE_CHECKING or __name__ != "rallypoint_forkserver":
    from rallypoint.agent.in_worker.preload import (
        rallypoint_armed,
        rallypoint_checks,
        rallypoint_child,
        rallypoint_main,
    )
else:  # in a forkserver: beside this file, which is first on sys.path
    import rallypoint_armed
    import rallypoint_checks
    import rallypoint_child
    import rallypoint_main

LOOK_S = 60.0
"""How often it looks whether a file that it has imported was changed, if it is not asked."""
LAST_LOOK_S = 0.02
"""How long it looks once more at the user's own files before it forks. All files would take more
than a turn on a processor."""
LOOK_AGAIN_S = 1.0
"""The workers of a round end one after the other, and are forked so: one look is enough for all."""
DESCRIPTORS = 5
"""That come with the message that asks for a worker: three streams, report and gate."""
ARMED = "RALLYPOINT_ARMED"
MESSAGE_BYTES_MAX = 1 << 20
"""Far beyond what the kernel takes from the helper at once."""


class Forkserver:
    """The interpreter that is forked."""

    def __init__(self, fds: list[int], before: dict[bytes, bytes]) -> None:
        """Take the sockets to the agent and to the helper, and the variables before the imports."""
        for fd in fds:
            os.set_inheritable(fd, False)
        self._agent, self._helper = (_socket.socket(fileno=fd) for fd in fds)
        self._before = before
        self._argv = list(sys.argv)
        self._stamps: list[tuple[str, rallypoint_checks.Stamp]] = []
        """Every file that was imported."""
        self._own_stamps: list[tuple[str, rallypoint_checks.Stamp]] = []
        """Those that are not installed: the user's own."""
        self._formats: dict[int, int] = {}
        """What kind of file stdout and stderr are, by descriptor."""
        self._files: list[int] = []
        """Descriptors of files that imports have opened."""
        self._looked_s = self._looked_at_all_s = 0.0
        self._child_handler: Any = None
        """What imports let the worker do when a child of its ends."""

    def serve(self) -> None:
        """Import what the agent asks for; return in each worker that is forked then.

        This process ends if anything fails before: after an exception, Python would run the main
        program, outside of any round.
        """
        pid = os.getpid()
        try:
            self._send(type="hello")
            prepare = self._receive()
            if not rallypoint_main.is_program(prepare["program"]):
                self._end("PYTHON_EXEC starts another Python program first, or adds arguments")
            self._prepare(prepare["modules"], prepare["calls"], prepare["path"])
            shown = self._receive()["shown"]
            self._serve()
        except BaseException as error:  # noqa: BLE001 - an import may have set a signal handler
            if os.getpid() != pid:
                os._exit(1)
            self._end(f"{type(error).__name__}: {error}")
        for fd, text in shown.items():
            data = text.encode("utf-8", "surrogateescape")
            try:
                while data:
                    data = data[os.write(int(fd), data) :]
            except OSError:  # no process reads it any more
                pass

    def _serve(self) -> None:
        """Do what the agent and the helper ask for; return in each worker that is forked."""
        gc.collect()
        gc.freeze()  # the collector writes into what it looks at: each worker would get a copy
        while True:
            ready, _, _ = select.select((self._agent, self._helper), (), (), LOOK_S)
            if self._agent in ready and not self._agent.recv(4096):  # else it asks for a look
                os._exit(0)
            if self._helper in ready:
                if self._fork():
                    return
            elif time.monotonic() - self._looked_at_all_s > LOOK_AGAIN_S:
                self._look(self._stamps)  # some milliseconds, while other workers end
                self._looked_at_all_s = time.monotonic()

    # --- the agent ---

    def _send(self, **message: Any) -> None:
        """Send a frame; end this process if no one wants it any more."""
        body = json.dumps(message).encode("ascii")
        try:
            self._agent.sendall(len(body).to_bytes(4, "big") + body)
        except OSError:
            os._exit(0)

    def _receive(self) -> Any:
        """Return the next frame."""
        return json.loads(self._read(int.from_bytes(self._read(4), "big")))

    def _read(self, size: int) -> bytes:
        """Return so many bytes; end this process when the agent hangs up."""
        data = b""
        while len(data) < size:
            part = self._agent.recv(size - len(data))
            if not part:
                os._exit(0)
            data += part
        return data

    def _end(self, why: str, code: int = 1) -> NoReturn:
        """Tell the agent why this forkserver cannot be used, and end.

        Args:
            why: for people.
            code: 0 if another one can be used; after several others the agent gives up.
        """
        self._send(type="stale", why=why)
        os._exit(code)

    # --- imports ---

    def _prepare(self, modules: list[str], calls: list[str], path: str | None) -> None:
        before = rallypoint_checks.Before()
        self._formats = {fd: _format_of(fd) for fd in (1, 2)}
        variables, stamps = rallypoint_checks.Variables(), rallypoint_checks.Stamps()
        self._main = rallypoint_main.Main(path)
        failed: list[dict[str, str]] = []
        refusal = culprit = ""
        pid = os.getpid()
        for name in modules + calls:
            try:
                _call(name) if ":" in name else __import__(name)
            except BaseException as error:  # noqa: BLE001 - a module may call sys.exit
                if os.getpid() != pid:  # an import has forked this process, which ends here
                    _flush()
                    os._exit(_exit_code(error))
                failed.append({"name": name, "error": f"{type(error).__name__}: {error}"})
            if os.getpid() != pid:  # the process that it has forked returns from the import, too
                self._end("an import forks a process that continues with the program")
            refusal = variables.find_read() or rallypoint_checks.find_hindrance()
            if refusal:
                culprit = name
                break
        variables.end()
        self._main.end()
        self._stamps, self._own_stamps = stamps.end()
        refusal = refusal or before.find_refusal()
        self._files = before.list_files()
        self._child_handler = signal.getsignal(signal.SIGCHLD)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whatever it does, it waits for its forks
        refusal = refusal or rallypoint_child.probe()
        _flush()
        self._send(type="ready", failed=failed, refusal=refusal, culprit=culprit)

    def _look(
        self, stamps: list[tuple[str, rallypoint_checks.Stamp]], limit_s: float | None = None
    ) -> None:
        """End this process if one of these files has changed since it was imported."""
        began_s = time.monotonic()
        for path, stamp in stamps:
            if rallypoint_checks.stamp(path) != stamp:
                self._end(path + " has changed", 0)
            if limit_s is not None and time.monotonic() - began_s > limit_s:
                break  # the rest was looked at within LOOK_S

    # --- workers ---

    def _fork(self) -> bool:
        """Fork the worker that the helper asks for; return whether this process is the worker."""
        room = _socket.CMSG_SPACE(DESCRIPTORS * 4)
        text, ancillary, _, _ = self._helper.recvmsg(MESSAGE_BYTES_MAX, room)
        if not text:
            os._exit(0)
        fds = [fd for _, _, payload in ancillary for fd in memoryview(payload).cast("i")]
        if len(fds) != DESCRIPTORS:
            self._end("an import has left no descriptor free for the output of a worker")
        now_s = time.monotonic()
        if now_s - self._looked_s > LOOK_AGAIN_S:
            self._looked_s = now_s
            self._look(self._own_stamps, LAST_LOOK_S)
        try:
            answer = rallypoint_child.fork_twice()
        except OSError as error:
            answer = -(error.errno or errno.EAGAIN)
        if answer == 0:
            self._become_worker(json.loads(text), fds)
            return True
        for fd in fds:
            os.close(fd)
        self._helper.send(str(answer).encode())
        return False

    def _become_worker(self, message: Any, fds: list[int]) -> None:
        """Wait for the gate, and make this process what a fresh interpreter would be."""
        *streams, report_fd, gate_fd = fds
        try:
            for peer in (self._agent, self._helper):
                peer.close()
            rallypoint_child.enter(gate_fd, message["helper"], message["cpus"])
            for fd in self._files:
                rallypoint_child.reopen(fd)
            for target, fd in enumerate(streams):
                os.dup2(fd, target, inheritable=True)
                os.close(fd)
            for target in range(3):
                if target == 0 or _format_of(target) != self._formats[target]:
                    rallypoint_main.reopen(target)
            self._main.forget()
            rallypoint_main.set_variables(message["env"], self._before)
            prefix = os.environ.pop(ARMED, "")
            if prefix:
                rallypoint_child.permit_tracing()
                rallypoint_armed.arm(prefix)
            rallypoint_main.set_arguments(self._argv, message["argv"])
            rallypoint_child.renew()
            if self._child_handler is not None:  # None: not Python's
                signal.signal(signal.SIGCHLD, self._child_handler)
        except BaseException as error:  # noqa: BLE001 - the copy must not run on as a second server
            code = getattr(error, "errno", None) or errno.EINVAL
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            os.write(report_fd, f"{code} {why}".encode()[:4096])
            os._exit(127)
        rallypoint_child.report_start(report_fd, gate_fd)


def _call(name: str) -> None:
    module, _, function = name.partition(":")
    __import__(module)
    operator.attrgetter(function)(sys.modules[module])()


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
