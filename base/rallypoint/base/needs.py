"""What an agent needs of the kernel and of the limits around it, tried once before it starts.

Found later, a lack would be a traceback deep inside, or a wait without an end.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import os
import resource
import signal
import tempfile
from collections.abc import Callable
from typing import NamedTuple

FILES, FILES_PER_WORKER, FILES_PER_TEE = 20, 3, 3
"""Descriptors of an agent with a built-in coordinator, and of each worker (measured)."""
TASKS, TASKS_PER_WORKER, TASKS_PER_TEE = 13, 2, 1
"""Processes and threads of the same, without which gRPC waits for ever or aborts (measured). A
worker is a process, and threads of the agent read its output, with a tee its errors apart."""
HOSTED_TASKS = 12
"""Of a coordinator or a relay."""
TRIED_MAX = 256
"""Threads of a trial: more would take longer than 20 ms."""
END_S_MAX = 5.0
"""How long the threads of a trial may take to end."""
ADVICE_TASKS = "raise ulimit -u or pids.max"
_ADVICE_FOLDER = "let TMPDIR name a folder that can be written and has room, or set --log-dir"
_PR_GET_CHILD_SUBREAPER = 37
_CLONE3 = 435
"""On every architecture, like all calls from 424 on."""
_ALLOW = "allow it in the seccomp profile of this container"


class Need(NamedTuple):
    """Something that the kernel has, or this container allows."""

    name: str
    lack: str = ""
    """Why it cannot be used; empty: it can."""
    advice: str = ""
    """What to do about it."""
    substitute: str = ""
    """What the agent does without it; empty: it does not run."""


def try_kernel() -> list[Need]:
    """Try what every agent needs of the kernel, whatever its workers."""
    return [
        _try_proc(),
        _try("prctl", _try_prctl),
        _try("signals", lambda: os.kill(os.getpid(), 0)),
        _try("pidfds", _try_pidfds, "processes are watched by their ids and start times"),
    ]


def find_kernel_lack() -> str:
    """Return the first lack that no agent runs with, in a line; empty: there is none."""
    lacks = (need for need in try_kernel() if need.lack and not need.substitute)
    return next((f"{need.lack}: {need.advice}" for need in lacks), "")


def find_limit(workers: int, *, is_teed: bool, hosts: bool) -> str:
    """Return which limit is too low for an agent, in a line; empty: none.

    Args:
        workers: how many it will have, 1 or more.
        is_teed: their output goes to several places.
        hosts: it starts a coordinator.
    """
    per_worker = FILES_PER_WORKER + is_teed * FILES_PER_TEE
    files = len(os.listdir("/proc/self/fd")) + FILES + workers * per_worker
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    subject = f"an agent with {workers} worker{'s' * (workers > 1)}"
    if allowed != resource.RLIM_INFINITY and allowed < files:
        return (
            f"a process may open {allowed} files, and {subject} needs about {files}: "
            "raise ulimit -n"
        )
    per_worker = TASKS_PER_WORKER + is_teed * TASKS_PER_TEE
    return find_task_limit(subject, TASKS + workers * per_worker + hosts * HOSTED_TASKS)


def find_task_limit(subject: str, tasks: int) -> str:
    """Return that fewer processes and threads can start than a program needs; empty: they can."""
    tried = min(tasks, TRIED_MAX)
    startable = count_startable(tried)
    if startable == tried:
        return ""
    return (
        f"only {startable} more processes and threads can start here, and {subject} needs about "
        f"{tasks}: {advise_tasks()}"
    )


def advise_tasks() -> str:
    """Return what to do where too few processes and threads can start."""
    libc = ctypes.CDLL(None, use_errno=True)
    # C libraries do without clone3 only where it is unknown. Profiles older than it refuse it.
    if libc.syscall(_CLONE3, None, 0) == -1 and ctypes.get_errno() == errno.EPERM:
        return "update the container runtime, or allow clone3 in its seccomp profile"
    return ADVICE_TASKS


def find_folder_lack() -> str:
    """Return that no folder for temporary files can be written, in a line; empty: one can."""
    try:
        tempfile.gettempdir()
    except OSError:  # the text has every folder, but not what to do
        return f"no temporary file can be written: {_ADVICE_FOLDER}"
    return ""


def count_startable(wanted: int) -> int:
    """Return how many processes or threads can start now, up to `wanted`; none of them stays.

    A trial with threads finds every limit: of the user, of the container, of the machine.
    """
    gate, over = _thread.allocate_lock(), _thread.allocate_lock()
    started = 0
    ended = list[None]()

    def wait() -> None:
        with gate:
            ended.append(None)
            if len(ended) == started:
                over.release()

    over.acquire()
    with gate:
        try:
            while started < wanted:
                _thread.start_new_thread(wait, ())
                started += 1
        except RuntimeError:
            pass
    if started:
        over.acquire(timeout=END_S_MAX)
    return started


def _try(name: str, call: Callable[[], object], substitute: str = "") -> Need:
    try:
        call()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return Need(name, f"{name} cannot be used here ({why})", _ALLOW, substitute)
    return Need(name, substitute=substitute)


def _try_proc() -> Need:
    name = "/proc"
    try:
        shown = os.readlink("/proc/self")
    except OSError:
        lack = "/proc is not mounted here, and agents find their processes there"
        return Need(name, lack, "mount it")
    if shown != str(os.getpid()):
        lack = "/proc shows the processes of another pid namespace"
        return Need(name, lack, "mount it in this one (unshare --mount-proc)")
    return Need(name)


def _try_prctl() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(ctypes.c_int()), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _try_pidfds() -> None:
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        raise OSError(errno.ENOSYS, "this Python was built without them")
    fd = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(fd, 0)
    finally:
        os.close(fd)
