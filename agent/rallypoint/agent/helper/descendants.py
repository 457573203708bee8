"""Find the processes that descend from one process, and signal exactly those.

Rules:
  * A pid can be reused at any moment. So a signal goes through a pidfd, and the process is checked
    *after* the pidfd was opened. If the pid was reused before, the check fails; if it is reused
    after, the pidfd still refers to the dead process.
  * Where there are no pidfds (Linux before 5.3, an old profile of a container runtime, a Python
    that was built there), the check comes immediately before the signal, and a wait looks again and
    again at the pid and its start time.
  * A parent never started later than its child (an orphan goes to an older process). A chain of
    parents that violates this went through a reused pid and proves nothing.
  * /proc is not a snapshot: a list may miss a new process. Only the kernel knows that none is
    left: in a subreaper, waitpid fails with ECHILD exactly when it has no descendant.

Imported by the helper: standard library only, and no module that costs memory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import time

TYPE_CHECKING = False  # mypy knows the name; importing typing would cost the helper 1 MB
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

# Source: linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = (1 << 64) - 1
PR_GET_CHILD_SUBREAPER = 37

# The longest chain of parents that is followed; real ones have a dozen links.
MAX_ANCESTORS = 1024
# One pass lists and kills again while new processes appear, to catch a tree that forks. A tree that
# forks faster than this many lists is left to the next pass.
MAX_LOOKS_PER_PASS = 16
# The kernel allows an environment of up to 6 MiB.
ENVIRON_BYTES_MAX = 8 * 1024 * 1024
# How often a wait for killed processes lists again. A death ends the wait anyway, but no event
# reports an orphan that is reparented from below a process that does not die.
RESCAN_MS = 20
# /proc files read here are one line, except children and environ.
_READ_BYTES = 64 * 1024

# Children of this process that are no orphans of a helper: live helpers, hosted coordinators.
spared_children: set[int] = set()

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int | bytes) -> None:
    """Call prctl(2) for this process.

    Raises:
        OSError: the kernel refused.
    """
    argument = value if isinstance(value, bytes) else ctypes.c_ulong(value)
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def become_subreaper() -> None:
    """Make this process the new parent of the orphans of a dead helper."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def is_subreaper() -> bool:
    """Return whether orphans below this process become its children."""
    flag = ctypes.c_int()
    _libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(flag), 0, 0, 0)
    return bool(flag.value) or os.getpid() == 1


class ProcessStat:
    """The fields of /proc/<pid>/stat that are used."""

    __slots__ = ("group", "is_dead", "parent", "pid", "session", "start_ticks")

    def __init__(self, pid: int, line: bytes) -> None:
        """Parse one line; the command name may hold spaces and parentheses, so cut at the last."""
        fields = line[line.rindex(b")") + 2 :].split()
        self.pid = pid
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.start_ticks = int(fields[19])
        # A zombie leader may have running threads; the process is dead only without them.
        self.is_dead = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1


def read_proc(path: str, limit_bytes: int = _READ_BYTES) -> bytes | None:
    """Return up to `limit_bytes` of a /proc file, or None when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = chunk = os.read(fd, _READ_BYTES)
        while chunk and len(data) < limit_bytes:
            chunk = os.read(fd, _READ_BYTES)
            data += chunk
    except OSError:  # the process died between open and read
        return None
    finally:
        os.close(fd)
    return data


def read_stat(pid: int) -> ProcessStat | None:
    """Return the stat of a process, or None when no such process is visible."""
    line = read_proc(f"/proc/{pid}/stat")
    return ProcessStat(pid, line) if line else None


def list_processes() -> list[int]:
    """Return the pids of all visible processes, ascending as the kernel lists them."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def list_descendants(root: int) -> list[int]:
    """Return the descendants of `root`, parents before children, zombies included."""
    own = os.getpid()
    if os.path.exists(f"/proc/{own}/task/{own}/children"):
        return _collect(root, _read_children)
    children_of = _scan_children()
    return _collect(root, lambda pid: children_of.get(pid, []))


def _collect(root: int, children_of: Callable[[int], list[int]]) -> list[int]:
    pids = [root]
    seen = {root}
    for pid in pids:
        fresh = [child for child in children_of(pid) if child not in seen]
        seen.update(fresh)
        pids += fresh
    return pids[1:]


def _read_children(pid: int) -> list[int]:
    """Return the children of all threads of a process; a child belongs to one thread."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    texts = [read_proc(f"/proc/{pid}/task/{thread}/children", 1 << 20) for thread in threads]
    return [int(child) for text in texts if text for child in text.split()]


def _scan_children() -> dict[int, list[int]]:
    """Return parent -> children of all visible processes, for a kernel without children files."""
    children_of: dict[int, list[int]] = {}
    for pid in list_processes():
        stat = read_stat(pid)
        if stat is not None:
            children_of.setdefault(stat.parent, []).append(pid)
    return children_of


def is_descendant(pid: int, root: int) -> bool:
    """Return whether `root` is an ancestor of `pid` now."""
    stat = read_stat(pid)
    for _ in range(MAX_ANCESTORS):
        if stat is None or stat.parent == 0:
            return False
        parent = read_stat(stat.parent)
        if parent is None or parent.start_ticks > stat.start_ticks:
            return False
        if parent.pid == root:
            return True
        stat = parent
    return False


def open_pidfd(pid: int) -> int:
    """Return a pidfd of a process.

    Raises:
        ProcessLookupError: the process is gone.
        OSError: there is no pidfd here, or no descriptor left.
    """
    if not hasattr(os, "pidfd_open"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.pidfd_open(pid)


def signal_verified(pid: int, signum: int, is_target: Callable[[int], bool]) -> bool:
    """Signal a process if `is_target(pid)` holds once a pidfd pins the process.

    Returns:
        Whether the signal was sent; False, too, if the process is gone or belongs to another user.
    """
    fd = -1
    try:
        fd = open_pidfd(pid)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    try:
        if not is_target(pid):
            return False
        _send_signal(pid, fd, signum)
    except OSError:  # ESRCH: it died meanwhile; EPERM: another user's, the caller sees it survive
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def _send_signal(pid: int, fd: int, signum: int) -> None:
    if fd >= 0 and hasattr(signal, "pidfd_send_signal"):
        try:
            signal.pidfd_send_signal(fd, signum)
            return
        except OSError as error:  # perhaps only this call is forbidden here
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
    os.kill(pid, signum)


def kill_descendants(root: int, find_spared: Callable[[], Collection[int]] = tuple) -> None:
    """KILL every descendant of `root` that is not spared, and repeat while new ones appear."""
    killed: set[int] = set()
    for _ in range(MAX_LOOKS_PER_PASS):
        listed, spared = list_descendants(root), find_spared()
        fresh = [pid for pid in listed if pid not in killed and pid not in spared]
        if not fresh:
            return
        for pid in fresh:
            signal_verified(pid, signal.SIGKILL, lambda target: is_descendant(target, root))
        killed.update(fresh)


def drain(fd: int) -> None:
    """Read all that a pipe holds, without blocking."""
    try:
        while len(os.read(fd, 4096)) == 4096:
            pass
    except BlockingIOError:
        pass


def end_descendants(wake_fd: int, limit_ms: int) -> None:
    """KILL and reap until no descendant is left, or until the limit."""
    deadline = time.monotonic() + limit_ms / 1000
    poll = select.poll()
    poll.register(wake_fd, select.POLLIN)
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        kill_descendants(os.getpid())
        poll.poll(RESCAN_MS)
        drain(wake_fd)


def list_group(root: int, group: int) -> list[int]:
    """Return the descendants of `root` that are alive in the process group `group`."""
    stats = [read_stat(pid) for pid in list_descendants(root)]
    return [stat.pid for stat in stats if stat and stat.group == group and not stat.is_dead]


def signal_group(root: int, group: int, signum: int) -> bool:
    """Signal each descendant of `root` in `group`, whose leader was reaped.

    The number of the group may have been reused, so each member is checked.

    Returns:
        Whether the group still had a member.
    """

    def is_target(pid: int) -> bool:
        stat = read_stat(pid)
        return stat is not None and stat.group == group and is_descendant(pid, root)

    return any([signal_verified(pid, signum, is_target) for pid in list_group(root, group)])


class Orphans:
    """The orphans that were reparented to this process.

    Attributes:
        statuses: raw wait status of each orphan that was reaped, by pid.
        survivors: orphans, and their descendants, that still exist at the end; sorted.
    """

    __slots__ = ("statuses", "survivors")

    def __init__(self, statuses: dict[int, int], survivors: tuple[int, ...]) -> None:
        """Take the result of a search."""
        self.statuses = statuses
        self.survivors = survivors


def end_orphans(
    *,
    born_ticks: int,
    spared: Collection[int],
    limit_ms: int,
    is_ours: Callable[[int], bool] = lambda pid: True,
) -> Orphans:
    """KILL and reap the orphans of a dead child of this process, a subreaper. Blocks.

    An orphan is a child in another session than ours, started no earlier than `born_ticks` and not
    spared. A process cannot join an existing session, so descendants of the dead child are never in
    ours, and an ordinary subprocess of ours always is.

    Args:
        born_ticks: start of the dead child, clock ticks since boot as in /proc/<pid>/stat.
        spared: children that must live, with their descendants.
        limit_ms: how long to try, in milliseconds.
        is_ours: tells orphans from other children, which a program around us may have started in
            another session.
    """
    own = os.getpid()
    known: set[int] = set()  # a dead process shows no environment
    deadline = time.monotonic() + limit_ms / 1000
    statuses: dict[int, int] = {}

    def list_roots() -> list[int]:
        found = _list_orphan_roots(born_ticks, spared)
        known.update(pid for pid in found if pid not in known and is_ours(pid))
        return [pid for pid in found if pid in known]

    roots = list_roots()
    while roots and time.monotonic() < deadline:
        for pid in roots:
            signal_verified(pid, signal.SIGKILL, lambda target: is_descendant(target, own))
            kill_descendants(pid)
        await_any_exit(roots, RESCAN_MS)
        for pid in roots:
            _reap(pid, statuses)
        roots = list_roots()
    below = [pid for root in roots for pid in list_descendants(root)]
    return Orphans(statuses, tuple(sorted({*roots, *below})))


def _list_orphan_roots(born_ticks: int, spared: Collection[int]) -> list[int]:
    # By stat, since children files may skip an entry while siblings die. ECHILD cannot prove that
    # none is left here, because this process has other children.
    own = os.getpid()
    session = os.getsid(0)
    stats = [read_stat(pid) for pid in list_processes()]
    return [
        stat.pid
        for stat in stats
        if stat and stat.parent == own and stat.session != session
        if stat.start_ticks >= born_ticks and stat.pid not in spared
    ]


def has_variable(pid: int, variable: str) -> bool:
    """Return whether a live process has this variable, `NAME=VALUE`, in its environment."""
    environ = read_proc(f"/proc/{pid}/environ", ENVIRON_BYTES_MAX) or b""
    return os.fsencode(variable) in environ.split(b"\0")


def _reap(pid: int, statuses: dict[int, int]) -> None:
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
    if reaped == pid:
        statuses[pid] = status


def await_any_exit(pids: Collection[int], timeout_ms: int) -> bool:
    """Wait until one of these processes has died; return whether one has, or was gone before."""
    poller = select.poll()
    fds: list[int] = []
    try:
        for pid in pids:
            fd = open_pidfd(pid)
            fds.append(fd)
            poller.register(fd, select.POLLIN)
        return bool(poller.poll(timeout_ms))
    except ProcessLookupError:
        return True
    except OSError:
        return _watch_pids(pids, timeout_ms)
    finally:
        for fd in fds:
            os.close(fd)


def _watch_pids(pids: Collection[int], timeout_ms: int) -> bool:
    deadline = time.monotonic() + timeout_ms / 1000
    found = [read_stat(pid) for pid in pids]
    while not any(stat is None or _has_exited(stat) for stat in found):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(RESCAN_MS / 1000, left_s))
    return True


def _has_exited(before: ProcessStat) -> bool:
    now = read_stat(before.pid)
    return now is None or now.is_dead or now.start_ticks != before.start_ticks
