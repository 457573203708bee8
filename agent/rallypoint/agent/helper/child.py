"""How a forked child of the helper becomes a worker.

The worker gets its own session and process group, SIGKILL when the helper dies, default signal
dispositions, an empty signal mask, and three descriptors as stdio. All others of the helper are
closed. Then the worker executes its program, or runs a function in the helper's interpreter.

Imported by the helper: standard library only, and no module that costs memory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import warnings  # noqa: F401 - os.execvpe imports it; once here, not again in every child

from rallypoint.agent.helper.descendants import (
    PR_SET_NAME,
    PR_SET_PDEATHSIG,
    PR_SET_PTRACER,
    PR_SET_PTRACER_ANY,
    prctl,
)
from rallypoint.agent.helper.frames import ARMED_ENV, FORKSERVER_FDS

TYPE_CHECKING = False  # mypy knows the name; importing typing would cost 1 MB
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, NoReturn

_FORKED_NAME = b"python"  # without exec it would have the helper's
_REPORT_BYTES_MAX = 4096  # PIPE_BUF: one write to the pipe is atomic


def become_worker(
    message: dict[str, Any],
    fds: tuple[int, ...],
    report_fd: int,
    helper_pid: int,
    *,
    start_fd: int = -1,
    file_limits: tuple[int, int] | None = None,
    run: Callable[[list[str]], NoReturn] | None = None,
    inherited: Collection[int] = (),
) -> NoReturn:
    """Turn this forked child into the worker; never returns.

    Args:
        message: the spawn frame: argv, env, cwd, cpus, forked, serves.
        fds: descriptors for stdin, stdout and stderr, all above 2, and for a forkserver those of
            FORKSERVER_FDS.
        report_fd: close-on-exec pipe for "<errno> <message>" when the child cannot become it.
        helper_pid: the parent.
        start_fd: the folder in which the agent started; -1: it cannot be opened.
        file_limits: how many files it may open, and to how many it may raise that; None: as many as
            the helper.
        run: runs a function instead of a program, if the frame wants that.
        inherited: descriptors that such a function may use.
    """
    is_forked = run is not None and message["forked"]
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != helper_pid:  # the helper died before prctl
            os._exit(1)
        _reset_signals()
        _enter(os.fsdecode(_to_bytes(message["cwd"])), start_fd)
        numbers = (0, 1, 2, *(FORKSERVER_FDS if message["serves"] else ()))
        kept = inherited if is_forked else ()
        report_fd = _arrange_descriptors(numbers, fds, report_fd, kept)
        if file_limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, file_limits)
        _bind(message["cpus"])
        if ARMED_ENV in message["env"]:
            _permit_tracing()
        if is_forked:
            prctl(PR_SET_NAME, _FORKED_NAME)
            _set_environment(message["env"])
            os.close(report_fd)
        elif message["forked"]:
            raise OSError(errno.ENOEXEC, "this helper cannot run functions")
        else:
            _execute(message["argv"], message["env"])
    except OSError as error:
        report = f"{error.errno or errno.EIO} {error.strerror or error}"
    except Exception as error:  # noqa: BLE001 - the copy must not run on as a second helper
        report = f"{errno.EINVAL} {type(error).__name__}: {error}"
    else:
        try:
            assert run is not None
            run(message["argv"])
        finally:
            os._exit(1)
    os.write(report_fd, report.encode("utf-8", "backslashreplace")[:_REPORT_BYTES_MAX])
    os._exit(127)


def _enter(folder: str, start_fd: int) -> None:
    """Enter the working folder; that of the agent even if it has no name any more.

    Args:
        folder: its path; empty: that of the agent, which was removed.
        start_fd: that of the agent.
    """
    if not folder and start_fd >= 0:
        os.fchdir(start_fd)
        return
    try:
        os.chdir(folder)
    except OSError as error:
        raise OSError(error.errno, f"cannot enter the folder {folder}: {error.strerror}") from None


def _execute(argv: list[str], environment: dict[str, str]) -> None:
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        raise OSError(error.errno, f"cannot run {argv[0]}: {error.strerror}") from None


def _set_environment(environment: dict[str, str]) -> None:
    """Replace the whole environment."""
    os.environb.clear()
    for name, value in environment.items():
        os.environb[_to_bytes(name)] = _to_bytes(value)


def _permit_tracing() -> None:
    """Let processes of the same user trace this one; an exec keeps that."""
    try:
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)
    except OSError:  # no Yama: they may anyway
        pass


def _to_bytes(text: str) -> bytes:
    """Return what the frame carries; the locale of a helper that runs functions is the user's."""
    return text.encode("utf-8", "surrogateescape")


def _bind(cpus: list[int]) -> None:
    try:
        if cpus:
            os.sched_setaffinity(0, cpus)
    except OSError as error:  # removed from this container, or offline
        raise OSError(error.errno, f"cannot be bound to CPUs {cpus}: {error.strerror}") from None


def _reset_signals() -> None:
    for signum in range(1, signal.NSIG):
        try:
            signal.signal(signum, signal.SIG_DFL)
        except (OSError, ValueError):  # KILL, STOP, and those that the C library reserves
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _arrange_descriptors(
    numbers: tuple[int, ...], fds: tuple[int, ...], report_fd: int, inherited: Collection[int]
) -> int:
    """Give the worker its descriptors, close all others, and return the number of `report_fd`."""
    above = max(numbers) + 1  # where none is in the way of another
    try:
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in (report_fd, *fds)]
    except OSError as error:
        why = f"it needs {above + len(fds) + 1} descriptors, and the limit (ulimit -n) is lower"
        raise OSError(error.errno, why) from None
    report_fd = moved[0]
    for number, fd in zip(numbers, moved[1:], strict=True):
        os.dup2(fd, number)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in numbers and fd != report_fd and fd not in inherited:
            try:
                os.close(fd)
            except OSError:  # the descriptor of the listing itself
                continue
    return report_fd
