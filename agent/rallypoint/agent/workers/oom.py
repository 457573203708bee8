"""Whether the kernel killed a process for want of memory: only where the kernel itself says so.

It says so in two places. Its log names the process, in numbers of the first PID namespace, so it
is asked only by an agent that lives there and may read it; then its answer is final. Elsewhere, as
in most containers, the memory cgroup counts such kills without naming anybody. The count is read
when a worker starts and when one dies by a SIGKILL that was not ours, and each kill explains one
such death. A kill of a child of a worker is told from that of the worker in the log only.

Source: Documentation/ABI/testing/dev-kmsg, admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst of the
Linux kernel.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO: the namespace in whose numbers the kernel's log speaks."""
RECORD_BYTES = 8_192
"""No record of the log is longer."""
RECORDS_MAX = 20_000
"""Read in one go; a log that fills faster than this says nothing useful."""
KILLED_MAX = 1_024
"""Pids that are remembered; of older ones nobody asks any more."""

_KILLED = re.compile(r"(?:(?:Memory cgroup o|O)ut of memory.*: )?Killed process (\d+) \(")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_FILES = {
    "cgroup2": ("memory.events.local", "memory.events"),
    "cgroup": ("memory.oom_control",),
}
"""Where a cgroup counts, by the type of its file system; of version 2 the processes in it alone."""


class Mount(NamedTuple):
    """A mounted hierarchy of cgroups that may count."""

    kind: str
    """"cgroup2", or "cgroup" for version 1's of the memory controller."""
    root: str
    """The cgroup that is seen at `point`."""
    point: str


def parse_killed_pid(record: str) -> int | None:
    """Return the process that a record of the kernel's log says was killed, or None.

    Args:
        record: "priority,sequence,microseconds,flags;text", perhaps with further lines.
    """
    head, _, text = record.partition(";")
    priority = head.partition(",")[0]
    if not priority.isdecimal() or int(priority) >> 3 != 0:
        return None  # another facility than the kernel's: a program wrote it
    found = _KILLED.match(text)
    return int(found[1]) if found else None


def parse_mounts(mountinfo: str) -> list[Mount]:
    """Return the hierarchies that /proc/self/mountinfo tells of and that may count kills."""
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
    """Return the cgroup of a process by the kind of its hierarchy, from its /proc/PID/cgroup."""
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
    """Return how many processes a cgroup's file says were killed, or None if it does not count."""
    found = _COUNT.search(text)
    return int(found[1]) if found else None


def find_counters(mounts: Iterable[Mount], cgroups: dict[str, str]) -> list[Path]:
    """Return the files in which a process's kills may be counted, the best one first."""
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
    """The pids that the kernel's log names from now on."""

    def __init__(self, fd: int) -> None:
        """Take a descriptor of /dev/kmsg that does not block and stands at the end."""
        self._fd = fd
        self._killed: dict[int, None] = {}
        self.is_complete = True
        """False once records were overwritten before they were read."""

    @classmethod
    def open(cls) -> Self | None:
        """Return the log, or None where it may not be read or speaks of other pids than we do."""
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

    def take(self, pid: int) -> bool:
        """Return whether the log names the process, and forget that it does."""
        self._read()
        return self._killed.pop(pid, False) is None

    def close(self) -> None:
        """Give the descriptor back."""
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
                    continue  # the oldest were overwritten: go on with what there is
                return
            pid = parse_killed_pid(record.decode(errors="replace"))
            if pid is not None:
                self._killed[pid] = None
                while len(self._killed) > KILLED_MAX:
                    del self._killed[next(iter(self._killed))]
        self.is_complete = False


@dataclass(slots=True)
class OomWatch:
    """Tells of each worker whether the kernel killed it for want of memory."""

    log: KernelLog | None
    proc: Path = Path("/proc")
    _mounts: list[Mount] = field(default_factory=list)
    _counters: dict[int, Path] = field(default_factory=dict)
    """Of workers that live, by pid."""
    _explained: dict[Path, int] = field(default_factory=dict)
    """Kills that a counter had counted before, or that have explained a death."""

    @classmethod
    def begin(cls) -> Self:
        """Return a watch over this machine, with whatever of it may be read."""
        return cls(KernelLog.open())

    def started(self, pid: int) -> None:
        """Note where a worker's death would be counted. Never raises."""
        if self.log is not None:
            self.log.take(pid)  # the number may have been another process's before
        try:
            if not self._mounts:
                self._mounts = parse_mounts((self.proc / "self/mountinfo").read_text())
            cgroups = parse_cgroups((self.proc / str(pid) / "cgroup").read_text())
        except OSError:
            return
        for path in find_counters(self._mounts, cgroups):
            count = _read_count(path)
            if count is not None:
                if path not in self._counters.values():
                    self._explained[path] = count
                self._counters[pid] = path
                return

    def ended(self, pid: int, *, is_suspect: bool) -> bool:
        """Return whether the kernel says that it killed the worker. Never raises.

        Args:
            pid: of a worker that has ended.
            is_suspect: it died by a SIGKILL that was not the agent's.
        """
        path = self._counters.pop(pid, None)
        if not is_suspect:
            return False
        if self.log is not None:
            is_named = self.log.take(pid)
            if is_named or self.log.is_complete:
                return is_named
        if path is None:
            return False
        count = _read_count(path)
        if count is None or count <= self._explained[path]:
            return False
        self._explained[path] += 1
        return True

    def close(self) -> None:
        """Give back what is open."""
        if self.log is not None:
            self.log.close()


def _read_count(path: Path) -> int | None:
    try:
        return parse_count(path.read_text())
    except OSError:
        return None
