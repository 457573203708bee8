"""What can be asked of a worker host, and what it reports: plain values, no processes.

See process.py for the order in which events come.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The token of the Clean and Blocked that follow HelperLost; sweep() takes only positive ones.
ORPHANS = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """One worker to start."""

    worker_id: int  # the caller's number; free again once its Exited or SpawnFailed has come
    argv: tuple[str, ...]  # program, looked up in the PATH of env, and its arguments
    env: Mapping[str, str]  # the whole environment; bytes outside UTF-8 as surrogate escapes
    cwd: str  # working directory; relative to the agent's
    stdout_fd: int  # only borrowed for the call: the caller may close it after
    stderr_fd: int  # the same; may be the same descriptor
    stdin_fd: int = 0  # the same; the caller's own unless given
    cpus: tuple[int, ...] = ()  # what it is bound to before it begins; none: what the helper has


@dataclass(frozen=True, slots=True)
class Spawned:
    """The worker's program runs."""

    worker_id: int
    pid: int  # also its process group and session


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The worker could not be started."""

    worker_id: int
    errno: int  # of the step that failed; EBUSY: a sweep is on; EPIPE: the helper died
    message: str  # for people


@dataclass(frozen=True, slots=True)
class Exited:
    """The worker's process is gone; others of its group may still live.

    At most one of exit_code and signal is set; neither when the helper died and nobody else could
    collect the status.
    """

    worker_id: int
    pid: int
    exit_code: int | None  # 0..255
    signal: int | None  # the signal that killed it


@dataclass(frozen=True, slots=True)
class Clean:
    """No process that any worker started is left."""

    token: int  # of the sweep; ORPHANS after HelperLost


@dataclass(frozen=True, slots=True)
class Blocked:
    """Some processes survived KILL for the limit of the sweep; Clean follows if they ever go."""

    token: int  # of the sweep; ORPHANS after HelperLost
    pids: tuple[int, ...]  # ascending


@dataclass(frozen=True, slots=True)
class Swept:
    """The helper found and killed processes that a dead agent had left on this node."""

    pids: tuple[int, ...]  # ascending


@dataclass(frozen=True, slots=True)
class HelperLost:
    """The helper process died unasked, and with it all workers."""

    pid: int  # of the helper


HostEvent = Spawned | SpawnFailed | Exited | Clean | Blocked | Swept | HelperLost


def parse_event(message: dict[str, Any]) -> HostEvent:
    """Return the event that a frame of the helper reports.

    Raises:
        ValueError: no helper of this version sends such a frame.
    """
    match message:
        case {"type": "spawned", "id": worker_id, "pid": pid}:
            return Spawned(worker_id, pid)
        case {"type": "spawn_failed", "id": worker_id, "errno": code, "message": text}:
            return SpawnFailed(worker_id, code, text)
        case {"type": "exited", "id": worker_id, "pid": pid, "status": status}:
            return parse_exit(worker_id, pid, status)
        case {"type": "clean", "token": token}:
            return Clean(token)
        case {"type": "blocked", "token": token, "pids": pids}:
            return Blocked(token, tuple(pids))
        case {"type": "swept", "pids": pids}:
            return Swept(tuple(pids))
        case _:
            raise ValueError(f"the helper sent {message!r}")


def parse_exit(worker_id: int, pid: int, status: int | None) -> Exited:
    """Return the exit that a raw wait status describes; None is a status nobody collected."""
    if status is None:
        return Exited(worker_id, pid, None, None)
    code = os.waitstatus_to_exitcode(status)
    return Exited(worker_id, pid, code, None) if code >= 0 else Exited(worker_id, pid, None, -code)
