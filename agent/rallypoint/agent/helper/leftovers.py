"""Recognise and kill worker processes whose node agent is dead.

A helper kills its own descendants; this is for the case that agent and helper died together. The
environment of every worker holds a mark that identifies its agent: pid, start time, pid namespace
and boot.

Rules: a process is killed only if it belongs to our user, is in our pid and time namespaces, is of
this boot, is not an ancestor of ours, and its agent is *known* to be dead. An agent that cannot be
examined counts as alive.

Imported by the helper: standard library only, and no module that costs memory.
"""

from __future__ import annotations

import os
import signal
import time

from rallypoint.agent.helper.descendants import (
    ENVIRON_BYTES_MAX,
    await_any_exit,
    is_descendant,
    list_processes,
    read_proc,
    read_stat,
    signal_verified,
)

AGENT_MARK_ENV = "RALLYPOINT_AGENT"

_PREFIX = AGENT_MARK_ENV.encode() + b"="


class AgentMark:
    """The agent process that a worker belongs to.

    Attributes:
        pid: the agent's, in its pid namespace.
        start_ticks: when it started, clock ticks since boot; with the pid it names one process.
        place: where the pid is valid: inode of the pid namespace and boot id, `<inode>:<boot id>`.
    """

    __slots__ = ("pid", "place", "start_ticks")

    def __init__(self, pid: int, start_ticks: int, place: str) -> None:
        """Take the parts."""
        self.pid = pid
        self.start_ticks = start_ticks
        self.place = place


def compute_mark(incarnation: str) -> str:
    """Return the value of RALLYPOINT_AGENT for the workers of the calling process.

    Args:
        incarnation: the agent's incarnation; for people who read a process list, not compared.
    """
    stat = read_stat(os.getpid())
    if stat is None:
        raise OSError("cannot read /proc/<own pid>/stat: is /proc mounted?")
    return f"{incarnation}:{stat.pid}:{stat.start_ticks}:{_compute_place()}"


def parse_mark(value: bytes) -> AgentMark | None:
    """Return the mark in a RALLYPOINT_AGENT value, or None when it is not one of ours."""
    parts = value.decode("ascii", "replace").rsplit(":", 4)
    if len(parts) != 5 or not all(part.isdecimal() for part in parts[1:4]):
        return None
    return AgentMark(int(parts[1]), int(parts[2]), f"{parts[3]}:{parts[4]}")


def kill_leftovers(wait_ms: int) -> list[int]:
    """KILL every process that a dead agent left behind, and wait until all are gone.

    Args:
        wait_ms: the longest wait, in milliseconds; there is no wait if none was found.

    Returns:
        The pids that were killed, ascending.
    """
    place = _compute_place()
    leftovers = [pid for pid in list_processes() if _is_leftover(pid, place)]
    killed = [
        pid
        for pid in leftovers
        if signal_verified(pid, signal.SIGKILL, lambda target: _is_leftover(target, place))
    ]
    deadline = time.monotonic() + wait_ms / 1000
    for pid in killed:
        await_any_exit((pid,), max(0, round((deadline - time.monotonic()) * 1000)))
    return sorted(killed)


def _compute_place() -> str:
    boot_id = (read_proc("/proc/sys/kernel/random/boot_id") or b"").decode().strip()
    return f"{os.stat('/proc/self/ns/pid').st_ino}:{boot_id}"


def _is_leftover(pid: int, place: str) -> bool:
    mark = _read_mark(pid)  # first, because it excludes nearly every process
    return (
        mark is not None
        and mark.place == place
        and _is_in_our_namespaces(pid)
        and _is_agent_dead(mark)
        and pid != os.getpid()
        and not is_descendant(os.getpid(), pid)
    )


def _read_mark(pid: int) -> AgentMark | None:
    """Return the mark in the environment of a process of our own user."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return None
    except OSError:
        return None
    environ = read_proc(f"/proc/{pid}/environ", ENVIRON_BYTES_MAX)
    if not environ or _PREFIX not in environ:
        return None
    for entry in environ.split(b"\0"):
        if entry.startswith(_PREFIX):
            return parse_mark(entry[len(_PREFIX) :])
    return None


def _is_in_our_namespaces(pid: int) -> bool:
    # Another time namespace shows another number for the same start time.
    try:
        return all(
            os.stat(f"/proc/{pid}/ns/{kind}").st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino
            for kind in ("pid", "time")
            if os.path.exists(f"/proc/self/ns/{kind}")
        )
    except OSError:
        return False


def _is_agent_dead(mark: AgentMark) -> bool:
    # By kill(2), not /proc: hidepid hides the processes of other users.
    try:
        os.kill(mark.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it exists; its start time decides, if that can be read
    stat = read_stat(mark.pid)
    return stat is not None and (stat.start_ticks != mark.start_ticks or stat.is_dead)
