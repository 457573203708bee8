"""What the machine says about memory: whether it swaps, what processes use, and what there is.

Source: proc_vmstat(5), proc_pid_smaps(5), admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the
Linux kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SHARE = 10
"""Without --warm-memory, standbys may use one part of so many of the memory."""
_CGROUPS = Path("/sys/fs/cgroup")
_FILES = {"": "memory.max", "memory": "memory.limit_in_bytes"}
"""By the controllers in /proc/self/cgroup: version 2 names none."""


def read_swapped_out() -> int:
    """Return how many pages the machine has swapped out since it booted; 0 if it does not tell."""
    return parse_field(_read("/proc/vmstat"), "pswpout")


def read_memory_bytes(pid: int) -> int:
    """Return the memory of a process, shared pages in proportion; 0 once it has ended."""
    return parse_field(_read(f"/proc/{pid}/smaps_rollup"), "Pss:") * 1024


def find_limit_bytes() -> int:
    """Return how much memory standbys may use without --warm-memory."""
    memory = parse_field(_read("/proc/meminfo"), "MemTotal:") * 1024
    limits = [memory] if memory else []
    for path in find_limit_files(_read("/proc/self/cgroup"), _CGROUPS):
        text = _read(str(path)).strip()
        if text.isdecimal():  # "max": none
            limits.append(int(text))
    return min(limits, default=0) // SHARE


def find_limit_files(cgroups: str, mounted: Path) -> Iterator[Path]:
    """Yield the files that may limit the memory of this process, from a /proc/self/cgroup."""
    for line in cgroups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        name = "memory" if "memory" in controllers.split(",") else controllers
        if name not in _FILES:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for count in range(len(parts), -1, -1):  # a limit of any parent holds, too
            yield Path(mounted, name, *parts[:count], _FILES[name])


def parse_field(text: str, name: str) -> int:
    """Return the number that follows `name` at the start of a line; 0 without one."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:  # no such file in this kernel, or the process has ended
        return ""
