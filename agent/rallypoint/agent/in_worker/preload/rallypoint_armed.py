"""Lets the agent see what this worker does, although its threads may hold the interpreter's lock.

See sitecustomize.py. The agent sends SIGURG, and `faulthandler` writes the stacks of all threads
into PREFIX.stacks: without the lock, and without ending a system call. That signal is ignored by
default, so a process that has not been armed takes no harm from it. The first line of the file is
the number of its descriptor: before a signal, the agent looks whether the program has closed it.

A socket, PREFIX.sock, shows the Flight Recorder of torch: its C++ worker server answers there. It
starts when torch.distributed is imported.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` would take a millisecond
import faulthandler
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIGURG, SIGPIPE = 23, 13
"""The same on all machines that torch knows. The module `signal` would take a millisecond."""
STACKS_FD = 61
"""Of the file of stacks: above the descriptors that a program expects to be free."""
SOCKET_PATH_BYTES_MAX = 107
"""sizeof sun_path in unix(7), without the NUL."""
C10D = "torch._C._distributed_c10d"
BELOW = "torch.distributed."
KEPT_BYTES = 1 << 20
"""Of what else is written meanwhile; it takes less than a millisecond."""
NOTICE = b"Server listening to UNIX "
"""In the line that torch prints about its server."""


def arm(prefix: str) -> None:
    """Arm this process, if it is a worker and not a child of one.

    Args:
        prefix: of the paths of its files.
    """
    if os.getsid(0) != os.getpid():  # a shell is the worker, and this is a program that it runs
        return
    try:
        open_stacks(prefix + ".stacks")
    except Exception:  # noqa: BLE001, S110 - the agent sees no file, or a short one
        pass
    socket = prefix + ".sock"
    if len(os.fsencode(socket)) > SOCKET_PATH_BYTES_MAX:
        return
    if C10D in sys.modules:
        serve(socket)
    else:
        sys.meta_path.insert(0, Waiter(socket))


def open_stacks(path: str) -> None:
    """Let a signal write the stacks of all threads there.

    Raises:
        OSError: the file cannot be made.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    if _signal.getsignal(SIGURG) != _signal.SIG_DFL:  # an import of a forkserver wants it
        return
    fd = _move(os.open(path, flags, 0o600))
    faulthandler.register(SIGURG, file=fd, all_threads=True, chain=False)
    os.write(fd, b"%d\n" % fd)


def _move(fd: int) -> int:
    """Give a file the number STACKS_FD, if that is free; return its number."""
    try:
        os.fstat(STACKS_FD)
    except OSError:
        try:
            os.dup2(fd, STACKS_FD, inheritable=False)
        except OSError:  # above the limit
            return fd
        os.close(fd)
        return STACKS_FD
    return fd


class Waiter:
    """A finder that finds nothing, and starts the server when torch.distributed is imported."""

    def __init__(self, socket: str) -> None:
        """Begin to wait."""
        self._socket = socket
        self._pid = os.getpid()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Look whether torch's C++ part is there by now; another finder finds the module."""
        if not name.startswith(BELOW) or C10D not in sys.modules:
            return None
        try:
            sys.meta_path.remove(self)
        except ValueError:  # another thread was faster
            return None
        if os.getpid() == self._pid:  # else it is a child that the worker has forked
            serve(self._socket)
        # The search has lost its place in the list, so it begins again.
        importing: Any = sys.modules["_frozen_importlib"]
        return importing._find_spec(name, path, target)


def serve(socket: str) -> None:
    """Start torch's server; a torch that has none is left alone."""
    try:
        kind = getattr(sys.modules[C10D], "_WorkerServer", None)
        if kind is None or os.path.exists(socket):
            return
        import ctypes  # torch has imported it

        server = _quietly(lambda: _make(kind, socket), socket + ".err")
        # It lives as long as this process. Its destructor would print a warning, and in a child
        # that was forked it would shut down the socket of this process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    except Exception:  # noqa: BLE001, S110 - the agent sees no socket
        pass


def _make(kind: Any, socket: str) -> Any:
    """Make the server as if it were not there.

    Its threads get no signal, so that a program can wait for one with sigwait, and one processor,
    so that they are few: a server has as many as its first thread may use. It ignores SIGPIPE,
    which the program may have changed.
    """
    pipe = _signal.getsignal(SIGPIPE)
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    processors = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(processors)})
        return kind(socket)
    finally:
        os.sched_setaffinity(0, processors)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        if pipe is not None:
            try:
                _signal.signal(SIGPIPE, pipe)
            except ValueError:  # not in the main thread
                pass


def _quietly(call: Any, path: str) -> Any:
    """Call it without torch's line on standard error; other lines come a little later."""
    before = os.dup(2)
    try:
        # Not memfd_create: Pythons for older systems lack it.
        kept = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        os.dup2(kept, 2)
        try:
            return call()
        finally:
            os.dup2(before, 2)
            os.lseek(kept, 0, os.SEEK_SET)
            for line in os.read(kept, KEPT_BYTES).splitlines(True):
                if NOTICE not in line:
                    os.write(2, line)
            os.close(kept)
    finally:
        os.close(before)
