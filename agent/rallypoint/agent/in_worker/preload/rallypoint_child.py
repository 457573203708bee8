"""Forks of a forkserver: the child that proves that it can be forked, and the workers.

See sitecustomize.py.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import fcntl
import gc
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = -1
PROBE_S_MAX = 20
"""Longest life of the child that proves that others will work."""
_BAD_FORK = 3
"""Exit code of that child if it cannot use CUDA."""
_BY_ENTROPY = 1 << 31
"""The first word of a Mersenne Twister that was not seeded with a single number."""
_SEEDS_OF_PEOPLE = 1 << 32
"""The seeds that people choose are below; torch draws 64 bits for a generator that has none."""
_NO_WARNING = ("ignore", None, DeprecationWarning, None, 0)


def fork() -> int:
    """Fork this process, without the warning about threads.

    From Python 3.12 on it warns beside threads of libraries; a fork does without them.
    """
    warnings: Any = sys.modules.get("warnings")
    filters: list[Any] = getattr(warnings, "filters", [])
    filters.insert(0, _NO_WARNING)  # catch_warnings would forget what was warned of already
    try:
        return os.fork()
    finally:
        filters.remove(_NO_WARNING)


def fork_twice() -> int:
    """Fork a child of the subreaper above; return its pid, 0 in it, or minus an errno.

    Raises:
        OSError: there was no process or descriptor for that, or the process in between was killed.
    """
    reader, writer = os.pipe()
    try:
        middle = fork()
        if middle == 0:
            try:
                pid = fork()
            except OSError as error:
                pid = -(error.errno or errno.EAGAIN)
            if pid == 0:
                return 0
            try:
                os.write(writer, str(pid).encode())
            finally:
                os._exit(0)
        os.waitpid(middle, 0)
        os.set_blocking(reader, False)
        return int(os.read(reader, 64))
    finally:
        os.close(reader)
        os.close(writer)


def enter(gate_fd: int, parent: int, cpus: list[int]) -> None:
    """Wait until this process may begin as a worker; end it if it must not.

    Args:
        gate_fd: a byte arrives there when the helper knows this process.
        parent: the helper, whose end it must not outlive.
        cpus: to bind it to; empty: those of the forkserver.

    Raises:
        OSError: it cannot be bound.
    """
    os.setsid()
    if os.read(gate_fd, 1) != b"1":
        os._exit(1)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the helper died before prctl
        os._exit(1)
    if cpus:
        _bind(cpus)


def permit_tracing() -> None:
    """Let processes of the same user trace this one, where Yama forbids it by default."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)


def report_start(report_fd: int, gate_fd: int) -> None:
    """Tell the helper that this worker has begun, and wait until it has sent what has waited.

    An interrupt would raise KeyboardInterrupt in the middle of CPython's start, which continues
    after some exceptions. It ends this process instead, as it ends one that was just started.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.close(report_fd)
    os.read(gate_fd, 1)
    os.close(gate_fd)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)


def _bind(cpus: list[int]) -> None:
    """Bind this process, and let torch use fewer threads: it has counted processors before."""
    before = len(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cpus)
    torch = sys.modules.get("torch")
    if torch is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() * len(cpus) // before))


def renew() -> None:
    """Make this process's own what a fork shares and Python does not renew by itself.

    A generator that an import has seeded with a number stays as it is: it would be so in a fresh
    interpreter, too.
    """
    random = sys.modules.get("numpy.random")
    if random is not None:
        _, words, position, *_ = random.get_state()
        if words[0] == _BY_ENTROPY or position != len(words):
            random.seed()
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None and generator.initial_seed() >= _SEEDS_OF_PEOPLE:
        generator.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
    # Else what modules refer to is never finalized. Until Python 3.9 only the program's own atexit
    # calls functions.
    sys.modules.get("atexit", atexit).register(gc.unfreeze)


def reopen(fd: int) -> None:
    """Give this process its own position in a file: a fork shares it.

    Raises:
        OSError: the file cannot be opened any more.
    """
    flags, position = fcntl.fcntl(fd, fcntl.F_GETFL), os.lseek(fd, 0, os.SEEK_CUR)
    # Also a file that was deleted, or never had a name.
    own = os.open(f"/proc/self/fd/{fd}", flags & ~(os.O_TMPFILE | os.O_NOFOLLOW))
    os.lseek(own, position, os.SEEK_SET)
    os.dup2(own, fd, os.get_inheritable(fd))
    os.close(own)


def probe() -> str:
    """Return why forks of this process would not work; "": they would.

    A child does what hangs or fails in a fork of a process that has used threads or a GPU.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    child = fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PROBE_S_MAX)
            code = _try(torch)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status == 0:
        return ""
    if status == signal.SIGALRM:
        return "an import has run torch: a fork hangs in a product of matrices or a backward pass"
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _BAD_FORK:
        return "an import has initialized CUDA, so no fork of it can use a GPU"
    return f"a fork of it cannot use torch (wait status {status})"


def _try(torch: Any) -> int:
    """Do the work of the child; return its exit code."""
    if torch.cuda._is_in_bad_fork():
        return _BAD_FORK
    torch.set_num_threads(2)
    matrix = torch.ones(256, 256, requires_grad=True)
    (matrix @ matrix).sum().backward()
    return 0
