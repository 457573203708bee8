"""Finds out whether the kernel's OOM killer killed a worker. Only the kernel's reports count.

There are two sources. The kernel's log names the killed process, with pids of the first PID
namespace; for an agent in that namespace that may read the log, the log is the final answer.
Elsewhere, as in most containers, the memory cgroup counts kills without a pid. Its count is read
when a worker starts, and again when a worker dies by a SIGKILL that was not ours; each kill
explains one such death. Only the log distinguishes the kill of a worker from the kill of one of its
children.

Source: Documentation/ABI/testing/dev-kmsg, admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst of the
Linux kernel.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.agent.round.observer import WorkerEnd

FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO: the namespace of the pids in the kernel's log."""
RECORD_BYTES = 8_192
"""The longest record of the log."""
RECORDS_MAX = 20_000
"""Records that are read at once; a log that fills faster is useless."""
KILLED_MAX = 1_024
"""Pids that are kept; older ones are no longer needed."""

# Text, not a compiled pattern: `re` compiles it when it is first used, not at import.
_KILLED = r"(?:(?:Memory cgroup o|O)ut of memory.*: )?Killed process (\d+) \("
_COUNT = r"^oom_kill (\d+)$"
_FILES = {
    "cgroup2": ("memory.events.local", "memory.events"),
    "cgroup": ("memory.oom_control",),
}
"""Files with the count, by the type of the file system. In version 2 the first one counts the
processes of the cgroup itself, without those of its descendants."""


class Mount(NamedTuple):
    """A mounted hierarchy of cgroups that may count kills."""

    kind: str
    """"cgroup2", or "cgroup" for version 1's of the memory controller."""
    root: str
    """The cgroup that is visible at `point`."""
    point: str


def parse_killed_pid(record: str) -> int | None:
    """Return the pid of the killed process that a record of the kernel's log names, or None.

    Args:
        record: "priority,sequence,microseconds,flags;text", perhaps with further lines.
    """
    head, _, text = record.partition(";")
    priority = head.partition(",")[0]
    if not priority.isdecimal() or int(priority) >> 3 != 0:
        return None  # not the kernel's facility: a program wrote it
    match = re.match(_KILLED, text)
    return int(match[1]) if match else None


def parse_mounts(mountinfo: str) -> list[Mount]:
    """Return the hierarchies in /proc/self/mountinfo that may count kills."""
    mounts: list[Mount] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind_fields = left.split(), right.split()
        if len(fields) < 5 or len(kind_fields) < 3:
            continue
        kind, options = kind_fields[0], kind_fields[2].split(",")
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options):
            mounts.append(Mount(kind, fields[3], fields[4]))
    return mounts


def parse_cgroups(text: str) -> dict[str, str]:
    """Return the cgroups in a /proc/PID/cgroup, by the kind of their hierarchy."""
    cgroups: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            cgroups["cgroup2"] = path
        elif "memory" in controllers.split(","):
            cgroups["cgroup"] = path
    return cgroups


def parse_count(text: str) -> int | None:
    """Return the count of killed processes in a cgroup's file, or None if it has none."""
    match = re.search(_COUNT, text, flags=re.MULTILINE)
    return int(match[1]) if match else None


def find_counters(mounts: Iterable[Mount], cgroups: dict[str, str]) -> list[Path]:
    """Return the files that may count the kills of a process, the best one first."""
    paths: list[Path] = []
    for mount in mounts:
        path = cgroups.get(mount.kind, "")
        is_below_ours = path.startswith("/") and not path.startswith("/..")
        inside = os.path.relpath(path, mount.root) if is_below_ours else ".."
        if not inside.startswith(".."):
            folder = Path(mount.point, inside)
            paths += [folder / name for name in _FILES[mount.kind]]
    return paths


class KernelLog:
    """The pids of killed processes in the kernel's log, from now on."""

    def __init__(self, fd: int) -> None:
        """Take a non-blocking descriptor of /dev/kmsg, positioned at the end."""
        self._fd = fd
        self._killed: dict[int, None] = {}
        self.is_complete = True
        """False once records were lost: overwritten before they were read."""

    @classmethod
    def open(cls) -> Self | None:
        """Return the log, or None if it cannot be read or its pids are not ours."""
        try:
            if os.readlink("/proc/self/ns/pid") != FIRST_PID_NAMESPACE:
                return None
            fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            os.lseek(fd, 0, os.SEEK_END)
        except OSError:
            os.close(fd)
            return None
        return cls(fd)

    def pop(self, pid: int) -> bool:
        """Return whether the log names the process as killed, and forget it."""
        self._read()
        return self._killed.pop(pid, False) is None

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def _read(self) -> None:
        for _ in range(RECORDS_MAX):
            try:
                record = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self.is_complete = False
                if error.errno == errno.EPIPE:
                    continue  # the oldest were overwritten: continue with the rest
                return
            pid = parse_killed_pid(record.decode(errors="replace"))
            if pid is not None:
                self._killed[pid] = None
                while len(self._killed) > KILLED_MAX:
                    del self._killed[next(iter(self._killed))]
        self.is_complete = False


class OomQuestion(Struct, frozen=True):
    """Whether the kernel killed one worker, to be asked once its signal is known."""

    watch: OomWatch
    pid: int

    def explain(self, end: WorkerEnd) -> WorkerEnd:
        """Return the end with the kernel's answer."""
        is_suspect = end.signal == signal.SIGKILL and not end.is_kill_ours
        return replace(end, oom_killed=self.watch.was_killed(self.pid, is_suspect=is_suspect))


class OomWatch(Struct):
    """Finds out for each worker whether the kernel killed it because memory ran out."""

    log: KernelLog | None = None
    proc: Path = Path("/proc")
    _mounts: list[Mount] = field(default_factory=list)
    _counters: dict[int, Path] = field(default_factory=dict)
    """Counters of live workers, by pid."""
    _explained: dict[Path, int] = field(default_factory=dict)
    """Kills of a counter that happened before its first worker, or that have explained a death."""

    async def begin(self) -> None:
        """Open the kernel's log, if it can be read."""
        if self.log is None:
            self.log = KernelLog.open()

    def variables(self) -> Mapping[str, str]:
        """Return nothing: workers need no variable for this."""
        return {}

    def started(self, pid: int, local_rank: int) -> None:
        """Remember which file counts the kills of a worker."""
        if self.log is not None:
            self.log.pop(pid)  # an earlier process may have had the same pid
        try:
            if not self._mounts:
                self._mounts = parse_mounts(_read(self.proc / "self/mountinfo"))
            cgroups = parse_cgroups(_read(self.proc / str(pid) / "cgroup"))
        except OSError:
            return
        for path in find_counters(self._mounts, cgroups):
            count = _read_count(path)
            if count is not None:
                if path not in self._counters.values():
                    self._explained[path] = count
                self._counters[pid] = path
                return

    def ended(self, pid: int) -> OomQuestion:
        """Return the question whether the kernel killed the worker."""
        return OomQuestion(self, pid)

    def was_killed(self, pid: int, *, is_suspect: bool) -> bool:
        """Return whether the kernel reports that it killed the worker; forget the worker.

        Args:
            pid: of a worker that has ended.
            is_suspect: it died by a SIGKILL that was not the agent's.
        """
        path = self._counters.pop(pid, None)
        if not is_suspect:
            return False
        if self.log is not None:
            is_named = self.log.pop(pid)
            if is_named or self.log.is_complete:
                return is_named
        if path is None:
            return False
        count = _read_count(path)
        if count is None or count <= self._explained[path]:
            return False
        self._explained[path] += 1
        return True

    def swept(self) -> None:
        """Do nothing: the ends of the workers are reported one by one."""

    def close(self) -> None:
        """Close the kernel's log."""
        if self.log is not None:
            self.log.close()
            self.log = None


def _read(path: Path) -> str:
    """Return the text of a file that names paths, which need not be UTF-8.

    Raises:
        OSError: it cannot be read.
    """
    return os.fsdecode(path.read_bytes())


def _read_count(path: Path) -> int | None:
    try:
        return parse_count(_read(path))
    except OSError:
        return None
