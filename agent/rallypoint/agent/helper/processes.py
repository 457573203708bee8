"""Starts the helper's process: as a small interpreter, as one that can run functions, or as a fork.

exec_helper     the smallest interpreter; it can only execute programs.
exec_server     an interpreter with the caller's flags, which can also run pickled functions.
fork_helper     a copy of the calling process, which can run the functions of that process.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import stat
import subprocess
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from rallypoint.agent.helper.frames import IGNORED_SIGNALS
from rallypoint.agent.helper.main import main
from rallypoint.base.open_files import get_first_limits

Run = Callable[[list[str]], NoReturn]
"""Runs a function in a forked worker, from the arguments of its request."""

# The folder that holds `rallypoint`. Appended to the helper's path, so that it shadows nothing.
# The helper is imported, not run as a file, because only imported modules have cached bytecode.
_IMPORT_ROOT = str(Path(__file__).resolve().parents[3])
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from rallypoint.agent.helper.main import main; main(*map(int, sys.argv[2:]))"
)
# Without the working folder, which `-c` puts first: a worker gets the path of its function anyway.
_SERVER_PROGRAM = (
    "import sys; sys.path[:1] = sys.path[:1] if sys.path[0] else []; sys.path.append(sys.argv[1]); "
    "from rallypoint.agent.helper.main import main; "
    "from rallypoint.agent.in_worker.forked import run_payload; "
    "main(*map(int, sys.argv[2:]), run=run_payload)"
)

_controls: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""The agent's ends of the sockets to its helpers: a fork must not keep them open."""


class HelperProcess(Protocol):
    """A child of this process; `subprocess.Popen` is one."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal; None while it runs."""

    def wait(self) -> int:
        """Wait for its end; return the same."""

    def kill(self) -> None:
        """Send SIGKILL."""


Started = tuple[HelperProcess, socket.socket]
"""A new helper, and this process's end of the socket to it."""


class ForkedProcess:
    """A child that is a fork of this process."""

    def __init__(self, pid: int) -> None:
        """Take a child that was just forked."""
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal; None while it runs."""
        self._reap(os.WNOHANG)
        return self.returncode

    def wait(self) -> int:
        """Wait for its end; return the same."""
        self._reap(0)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL, if it has not been reaped."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, options: int) -> None:
        if self.returncode is not None:
            return
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # other code of this process has reaped it
            self.returncode = -signal.SIGKILL
            return
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)


def open_missing_streams() -> None:
    """Open those of the descriptors 0, 1 and 2 that are closed: to nothing.

    Otherwise a socket or a file gets such a number, and is taken for a standard stream.

    Raises:
        OSError: no descriptor is left.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def exec_helper() -> Started:
    """Start the smallest helper. Does not fork this process, so it is safe after gRPC has started.

    Raises:
        OSError: the process cannot start.
    """
    # -X utf8: the wire is UTF-8 with surrogate escapes whatever the locale; see host.py.
    options = ["-I", "-S", "-X", "utf8"] + ["-B"] * sys.dont_write_bytecode
    return _exec(options, _PROGRAM, None)


def exec_server(flags: Sequence[str], environment: Mapping[str, str]) -> Started:
    """Start a helper that can fork workers for pickled functions; as safe as `exec_helper`.

    Args:
        flags: of its interpreter, and so of the workers'.
        environment: of the helper. Later helpers find leftovers of the workers by it.

    Raises:
        OSError: the process cannot start.
    """
    return _exec(flags, _SERVER_PROGRAM, environment)


def _exec(flags: Sequence[str], program: str, environment: Mapping[str, str] | None) -> Started:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    numbers = (theirs.fileno(), os.getpid(), *get_first_limits())
    arguments = [_IMPORT_ROOT, *map(str, numbers)]
    # The helper inherits these signals blocked, and ignores them before it unblocks them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, *flags, "-c", program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if sys.stderr else subprocess.DEVNULL,  # the helper relies on 0..2
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _controls.add(ours)
    return process, ours


def fork_helper(run: Run) -> Started:
    """Fork this process to become the helper. Call it before other threads and gRPC start.

    Args:
        run: called in each worker.

    Raises:
        OSError: the process cannot be forked.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    _controls.add(ours)
    agent_pid = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # No handler of this process may run in the helper.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with theirs:
        try:
            with warnings.catch_warnings():  # a notebook has threads; the helper uses none of them
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                _become_helper(theirs, agent_pid, run)
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return ForkedProcess(pid), ours


def _become_helper(control: socket.socket, agent_pid: int, run: Run) -> NoReturn:
    """Run the helper in a fork of the agent's process. Never returns to the agent's code."""
    exit_code = 1
    try:
        os.setsid()
        gc.disable()  # what nothing refers to any more may own descriptors that it would close
        for other in _controls:
            other.close()
        _replace_descriptors()
        signal.set_wakeup_fd(-1)
        for signum in signal.valid_signals():  # as exec does
            if callable(signal.getsignal(signum)):
                signal.signal(signum, signal.SIG_DFL)
        fd = control.detach()
        limits = get_first_limits()
        main(fd, agent_pid, *limits, run=run, inherited=frozenset(_list_open() - {fd}))
        exit_code = 0
    except BaseException:  # noqa: BLE001 - the copy must not run on as a second agent
        traceback.print_exc()
    finally:
        os._exit(exit_code)


def _replace_descriptors() -> None:
    """Give up the agent's input, output and network: its ports and connections are not ours.

    They become /dev/null, because the copies of its objects may still close their numbers.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1):
        os.dup2(null, fd)
    for fd in filter(_is_network, _list_open()):
        os.dup2(null, fd, inheritable=False)
    os.close(null)


def _is_network(fd: int) -> bool:
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return False
    with socket.socket(fileno=os.dup(fd)) as copy:
        return copy.family in (socket.AF_INET, socket.AF_INET6)


def _list_open() -> set[int]:
    """Return the open descriptors."""
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    return {fd for fd in listed if os.path.exists(f"/proc/self/fd/{fd}")}
