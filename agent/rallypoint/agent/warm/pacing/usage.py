"""Reads who uses the processors, and decides whether they leave room for an import.

A low priority is not enough to protect workers. They wait for each other many times a second, and
an import that ran in the gaps slowed them down by a quarter, with every priority that was tried.

Source: proc_stat(5), proc_pid_stat(5) and admin-guide/cgroup-v2.rst of the Linux kernel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec import Struct

from rallypoint.agent.helper.descendants import list_descendants

WORKERS_MIN = 0.1
"""Processors that workers use at least, all together, if they can be disturbed."""
FREE_SHARE = 0.5
"""Share of the processors that has to be free. More: two of them may be one core."""
_TICKS = os.sysconf("SC_CLK_TCK")
_CGROUPS = Path("/sys/fs/cgroup")


class Quota(Struct, frozen=True):
    """A limit of a cgroup, and what its processes have used."""

    processors: float
    used_s: float


class Usage(Struct, frozen=True):
    """What was used up to a moment. Two of them tell what was used in between."""

    at_s: float
    """By the monotonic clock."""
    processors: int
    """Those that this process may use."""
    idle_s: float
    """For how long they had nothing to do, all together, since the machine booted."""
    workers_s: float
    """Processor time of the workers, and of what they have started, as far as it lives."""
    quotas: tuple[Quota, ...] = ()
    """Of the cgroup and those above it, if they have a limit."""


def leaves_room(before: Usage, after: Usage) -> bool:
    """Return whether an import could run all the time without slowing a worker down."""
    seconds = after.at_s - before.at_s
    if seconds <= 0 or _used(before, after) < WORKERS_MIN * seconds:
        return True
    free = (after.idle_s - before.idle_s) / seconds
    whole = float(after.processors)
    for earlier, later in zip(before.quotas, after.quotas, strict=False):
        free = min(free, later.processors - (later.used_s - earlier.used_s) / seconds)
        whole = min(whole, later.processors)
    return free >= whole * FREE_SHARE


def _used(before: Usage, after: Usage) -> float:
    """Return the processor time of the workers in between; more than 0 if one has ended."""
    return abs(after.workers_s - before.workers_s)


def read_usage(root: int) -> Usage:
    """Return what was used until now.

    Args:
        root: the pid of the process below which workers live; 0: there is none.
    """
    allowed = os.sched_getaffinity(0)
    workers = list_descendants(root) if root else []
    return Usage(
        at_s=time.monotonic(),
        processors=len(allowed),
        idle_s=parse_idle_s(_read(Path("/proc/stat")), allowed),
        workers_s=sum(parse_spent_s(_read(Path("/proc", str(pid), "stat"))) for pid in workers),
        quotas=tuple(_read_quotas()),
    )


def parse_idle_s(stat: str, allowed: Collection[int]) -> float:
    """Return for how long these processors were idle, from a /proc/stat."""
    ticks = 0
    for line in stat.splitlines():
        name, *numbers = line.split()
        if name[:3] != "cpu":
            break
        if name[3:].isdecimal() and int(name[3:]) in allowed:
            ticks += sum(map(int, numbers[3:5]))  # idle, and waiting for a disk
    return ticks / _TICKS


def parse_spent_s(stat: str) -> float:
    """Return the processor time of a process, from its /proc/PID/stat; 0 once it has ended."""
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


def parse_quota(limit: str, stat: str) -> Quota | None:
    """Return the limit of a cgroup, from its cpu.max and cpu.stat; None without one."""
    words = limit.split()
    used = dict(line.split() for line in stat.splitlines()).get("usage_usec")
    if len(words) != 2 or words[0] == "max" or used is None:
        return None
    return Quota(int(words[0]) / int(words[1]), int(used) / 1e6)


def _read_quotas() -> Iterator[Quota]:
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        if not line.startswith("0::/"):
            continue
        folder = _CGROUPS / line[4:]
        for one in (folder, *folder.parents):
            quota = parse_quota(_read(one / "cpu.max"), _read(one / "cpu.stat"))
            if quota is not None:
                yield quota
            if one == _CGROUPS:
                break


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:  # no such file in this kernel, or the process has ended
        return ""
