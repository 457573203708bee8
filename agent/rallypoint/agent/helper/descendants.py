"""Find the processes that descend from one process, and signal exactly those.

Rules:
  * A pid is only a number: it may name another process a moment later. So a signal goes through a
    pidfd, and whether the process is meant is asked *after* the pidfd was opened. If the number
    was reused before, the answer is no; if it is reused after, the pidfd still names the dead one.
  * A parent never started later than its child (an orphan goes to an older process). A chain of
    parents that violates this went through a reused pid and proves nothing.
  * What is read from /proc is not a snapshot; a list may miss a process that was just born. Who
    needs "none is left" asks the kernel: waitpid fails with ECHILD in a subreaper exactly when it
    has no descendant.

Imported by the helper: standard library only, and no module that costs memory.
"""

from __future__ import annotations

import ctypes
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

# A chain of parents longer than this is not worth following; real ones have a dozen links.
MAX_ANCESTORS = 1024
# One pass lists and kills again while new processes appear: a tree that forks is caught between
# two generations. What outruns this many looks is met by the next pass.
MAX_LOOKS_PER_PASS = 16
# How often a wait for the end of killed processes looks again. Deaths wake it by themselves; the
# timer is for an orphan that is handed up from below a parent that does not die: no event tells.
RESCAN_MS = 20
# /proc files read here are one line, except children and environ.
_READ_BYTES = 64 * 1024

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


class ProcessStat:
    """What /proc/<pid>/stat says of one process."""

    __slots__ = ("group", "is_dead", "parent", "pid", "session", "start_ticks")

    def __init__(self, pid: int, line: bytes) -> None:
        """Parse one line; the command name may hold spaces and parentheses, so cut at the last."""
        fields = line[line.rindex(b")") + 2 :].split()
        self.pid = pid
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.start_ticks = int(fields[19])
        # A zombie leader may still have running threads; only without them is the process dead.
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
    """Return the stat of a process, or None when there is no such process to see."""
    line = read_proc(f"/proc/{pid}/stat")
    return ProcessStat(pid, line) if line else None


def list_processes() -> list[int]:
    """Return every process that /proc shows, ascending as the kernel lists them."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def list_descendants(root: int) -> list[int]:
    """Return the descendants of `root`, parents before children, zombies included."""
    own = os.getpid()
    if os.path.exists(f"/proc/{own}/task/{own}/children"):
        return _collect(root, _read_children)
    children_of = _scan_children()
    return _collect(root, lambda pid: children_of.get(pid, []))


def _collect(root: int, children_of: Callable[[int], list[int]]) -> list[int]:
    found = [root]
    seen = {root}
    for pid in found:
        fresh = [child for child in children_of(pid) if child not in seen]
        seen.update(fresh)
        found += fresh
    return found[1:]


def _read_children(pid: int) -> list[int]:
    """Return the children of all threads of a process: a child belongs to the one that forked."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    texts = [read_proc(f"/proc/{pid}/task/{thread}/children", 1 << 20) for thread in threads]
    return [int(child) for text in texts if text for child in text.split()]


def _scan_children() -> dict[int, list[int]]:
    """Return parent -> children of all visible processes: for a kernel without children files."""
    children_of: dict[int, list[int]] = {}
    for pid in list_processes():
        stat = read_stat(pid)
        if stat is not None:
            children_of.setdefault(stat.parent, []).append(pid)
    return children_of


def is_descendant(pid: int, root: int) -> bool:
    """Tell whether `root` is a true ancestor of `pid` at this moment."""
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


def signal_verified(pid: int, signum: int, is_target: Callable[[int], bool]) -> bool:
    """Signal a process if, once it can no longer be mistaken, `is_target(pid)` holds.

    Returns:
        Whether the signal was sent; False also when the process is gone or belongs to another user.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not is_target(pid):
            return False
        signal.pidfd_send_signal(fd, signum)
    except OSError:  # ESRCH: died meanwhile; EPERM: another user's, the caller sees it survive
        return False
    finally:
        os.close(fd)
    return True


def kill_descendants(root: int) -> None:
    """KILL every descendant of `root`, again while killing brings new ones to light."""
    killed: set[int] = set()
    for _ in range(MAX_LOOKS_PER_PASS):
        fresh = [pid for pid in list_descendants(root) if pid not in killed]
        if not fresh:
            return
        for pid in fresh:
            signal_verified(pid, signal.SIGKILL, lambda target: is_descendant(target, root))
        killed.update(fresh)


def list_group(root: int, group: int) -> list[int]:
    """Return the descendants of `root` that are alive in the process group `group`."""
    stats = [read_stat(pid) for pid in list_descendants(root)]
    return [stat.pid for stat in stats if stat and stat.group == group and not stat.is_dead]


def signal_group(root: int, group: int, signum: int) -> bool:
    """Signal each descendant of `root` in `group`, whose leader was reaped: its number is no proof.

    Returns:
        Whether the group still had a member.
    """

    def is_target(pid: int) -> bool:
        stat = read_stat(pid)
        return stat is not None and stat.group == group and is_descendant(pid, root)

    return any([signal_verified(pid, signum, is_target) for pid in list_group(root, group)])


class Orphans:
    """What became of the orphans that were handed to this process.

    Attributes:
        statuses: raw wait status of each orphan that was reaped, by pid.
        survivors: orphans, and processes below them, that were still there at the end; sorted.
    """

    __slots__ = ("statuses", "survivors")

    def __init__(self, statuses: dict[int, int], survivors: tuple[int, ...]) -> None:
        """Hold the finding."""
        self.statuses = statuses
        self.survivors = survivors


def end_orphans(*, born_ticks: int, spared: Collection[int], limit_ms: int) -> Orphans:
    """KILL and reap what a dead child of this process (a subreaper) left to it. Blocks.

    An orphan is a child in another session than ours, started no earlier than `born_ticks` and not
    spared. A process cannot enter a session, so what the dead child's own session and those below
    it held is always elsewhere, and an ordinary subprocess of ours, in our session, is never met.

    Args:
        born_ticks: start of the dead child, clock ticks since boot as in /proc/<pid>/stat.
        spared: children that must live, with all below them.
        limit_ms: how long to try, in milliseconds.
    """
    own = os.getpid()
    deadline = time.monotonic() + limit_ms / 1000
    statuses: dict[int, int] = {}
    roots = _list_orphan_roots(born_ticks, spared)
    while roots and time.monotonic() < deadline:
        for pid in roots:
            signal_verified(pid, signal.SIGKILL, lambda target: is_descendant(target, own))
            kill_descendants(pid)
        await_any_exit(roots, RESCAN_MS)
        for pid in roots:
            _reap(pid, statuses)
        roots = _list_orphan_roots(born_ticks, spared)
    below = [pid for root in roots for pid in list_descendants(root)]
    return Orphans(statuses, tuple(sorted({*roots, *below})))


def _list_orphan_roots(born_ticks: int, spared: Collection[int]) -> list[int]:
    # By stat and not by children files: those may skip an entry while siblings die, and here no
    # ECHILD can settle whether one is left, because this process has children of its own.
    own = os.getpid()
    session = os.getsid(0)
    stats = [read_stat(pid) for pid in list_processes()]
    return [
        stat.pid
        for stat in stats
        if stat and stat.parent == own and stat.session != session
        if stat.start_ticks >= born_ticks and stat.pid not in spared
    ]


def _reap(pid: int, statuses: dict[int, int]) -> None:
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
    if reaped == pid:
        statuses[pid] = status


def await_any_exit(pids: Collection[int], timeout_ms: int) -> bool:
    """Wait until one of these processes has died; tell whether one has, or was gone already."""
    poller = select.poll()
    fds: list[int] = []
    try:
        for pid in pids:
            fd = os.pidfd_open(pid)
            fds.append(fd)
            poller.register(fd, select.POLLIN)
        return bool(poller.poll(timeout_ms))
    except ProcessLookupError:
        return True
    finally:
        for fd in fds:
            os.close(fd)
