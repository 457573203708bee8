"""The requests and events of a worker host.

See host.py for the order of events.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from rallypoint.agent.helper.frames import encode, to_wire

# The token of the Clean and Blocked that follow HelperLost; sweep() takes only positive ones.
ORPHANS = 0

# With one of these, every start fails until the node is changed. Others pass: memory, processes and
# descriptors become free, and a file handle is stale or a file busy only for a moment.
MISSING_ERRORS = frozenset(
    {
        errno.E2BIG,
        errno.EACCES,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOEXEC,
        errno.ENOTDIR,
    }
)


class SpawnRequest(NamedTuple):
    """One worker to start."""

    worker_id: int  # the caller's number; free again after Exited or SpawnFailed
    argv: tuple[str, ...]  # program, looked up in the PATH of env, and its arguments
    env: Mapping[str, str]  # the whole environment; bytes outside UTF-8 as surrogate escapes
    cwd: str  # working directory; relative to the agent's; empty: the agent's, which was removed
    stdout_fd: int  # borrowed for the call: the caller may close it afterwards
    stderr_fd: int  # the same; may be the same descriptor
    stdin_fd: int = 0  # the same; the caller's own unless given
    cpus: tuple[int, ...] = ()  # CPUs to bind it to before exec; empty: those of the helper
    is_forked: bool = False  # no exec: the helper's `run` gets argv, without a program
    server_fd: int = -1  # borrowed: its socket to the agent, if it is a forkserver; -1: it is none
    via: int | None = None  # the forkserver, by worker_id, that forks it; argv and env add to its

    def frame(self) -> bytes:
        """Return the frame that asks the helper for this worker.

        Raises:
            FrameTooLarge: arguments and environment exceed the limit of any kernel.
        """
        return encode(
            {
                "type": "spawn",
                "id": self.worker_id,
                "argv": [to_wire(argument) for argument in self.argv],
                "env": {to_wire(key): to_wire(value) for key, value in self.env.items()},
                "cwd": to_wire(self.cwd and os.path.abspath(self.cwd)),
                "cpus": self.cpus,
                "forked": self.is_forked,
                "serves": self.server_fd >= 0,
                "via": self.via,
            }
        )

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors that travel beside the frame."""
        stdio = (self.stdin_fd, self.stdout_fd, self.stderr_fd)
        return stdio if self.server_fd < 0 else (*stdio, self.server_fd)


class Spawned(NamedTuple):
    """The worker has exec'ed its program."""

    worker_id: int
    pid: int  # also its process group and session


class SpawnFailed(NamedTuple):
    """The worker could not be started."""

    worker_id: int
    errno: int  # of the failed step; EBUSY: a sweep is running; EPIPE: the helper died
    message: str  # for people

    @property
    def is_missing(self) -> bool:
        """True when the program or the folder is missing or cannot be used."""
        return self.errno in MISSING_ERRORS


class Exited(NamedTuple):
    """The worker's process has ended; others of its group may still live.

    At most one of exit_code and signal is set; neither, when the helper died and its status was
    lost. Times are of CLOCK_MONOTONIC, and true however late the event is handled.
    """

    worker_id: int
    pid: int
    exit_code: int | None  # 0..255
    signal: int | None  # the signal that killed it
    at_ns: int  # when it ended: when the helper reaped it
    signalled_ns: int | None = None  # the first signal to all, sweep or fence before; None: none
    was_killed: bool = False  # by a signal to all, a sweep or the fence: a SIGKILL may be ours


class Clean(NamedTuple):
    """No worker, and no process that one started, is left."""

    token: int  # of the sweep; ORPHANS after HelperLost


class Blocked(NamedTuple):
    """Some processes survived KILL for the limit of the sweep; Clean follows once they are gone."""

    token: int  # of the sweep; ORPHANS after HelperLost
    pids: tuple[int, ...]  # ascending


class Swept(NamedTuple):
    """The helper killed processes that a dead agent had left on this node."""

    pids: tuple[int, ...]  # ascending


class Fenced(NamedTuple):
    """The helper has carried out the fence: everything below it was sent KILL."""

    at_ms: int  # the time of the fence


class Pong(NamedTuple):
    """The helper answers a ping."""


class HelperLost(NamedTuple):
    """The helper process died unexpectedly, and all workers with it."""

    pid: int  # of the helper


HostEvent = Spawned | SpawnFailed | Exited | Clean | Blocked | Swept | HelperLost
Answer = Fenced | Pong
"""What the host takes for itself."""


def parse_event(message: dict[str, Any]) -> HostEvent | Answer:
    """Return the event or answer that a frame of the helper reports.

    Raises:
        ValueError: the frame violates the protocol of this version.
    """
    match message:
        case {"type": "spawned", "id": worker_id, "pid": pid}:
            return Spawned(worker_id, pid)
        case {"type": "spawn_failed", "id": worker_id, "errno": code, "message": text}:
            return SpawnFailed(worker_id, code, text)
        case {
            "type": "exited",
            "id": worker_id,
            "pid": pid,
            "status": status,
            "at_ns": at_ns,
            "signalled_ns": signalled_ns,
            "killed": killed,
        }:
            return parse_exit(worker_id, pid, status, at_ns, signalled_ns, was_killed=killed)
        case {"type": "clean", "token": token}:
            return Clean(token)
        case {"type": "blocked", "token": token, "pids": pids}:
            return Blocked(token, tuple(pids))
        case {"type": "swept", "pids": pids}:
            return Swept(tuple(pids))
        case {"type": "fenced", "at_ms": at_ms}:
            return Fenced(at_ms)
        case {"type": "pong"}:
            return Pong()
        case _:
            raise ValueError(f"the helper sent {message!r}")


def parse_exit(
    worker_id: int,
    pid: int,
    status: int | None,
    at_ns: int,
    signalled_ns: int | None,
    *,
    was_killed: bool,
) -> Exited:
    """Return the exit that a raw wait status describes; None: the status was lost."""
    code = None if status is None else os.waitstatus_to_exitcode(status)
    signum = None if code is None or code >= 0 else -code
    code = code if signum is None else None
    return Exited(worker_id, pid, code, signum, at_ns, signalled_ns, was_killed)
