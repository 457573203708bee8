"""Starts a hosted coordinator: a process that outlives this one.

It has its own session, and none of this process's pipes, sockets or standard streams. It is no
descendant of the helper, and does not have the mark of this agent's workers, so no sweep reaches
it. While this agent lives it is its child, whose end is noticed at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from rallypoint.agent.helper.descendants import await_any_exit, spared_children
from rallypoint.agent.helper.processes import ForkedProcess
from rallypoint.agent.hosting.decision import Hosting
from rallypoint.agent.hosting.folder import (
    JOURNAL,
    LOCK,
    LOG,
    find_lingering,
    remove_unused,
)
from rallypoint.agent.hosting.protection import Protection
from rallypoint.base.addresses import is_loopback
from rallypoint.base.interpreter import compute_flags
from rallypoint.wire.access import TOKEN_VARIABLE

LINGER_VARIABLE = "RALLYPOINT_LINGER"
"""How long a coordinator waits for lost nodes of a job that is over."""
END_S_MAX = 1.0
"""How long the end of a process that was killed is waited for."""
YIELD_S_MAX = 3.0
"""How long a coordinator may take to end that is asked to make room."""
LOOK_S = 0.02
"""Pause between two looks meanwhile."""


class HostedProcess:
    """A coordinator that this process has started."""

    def __init__(
        self, hosting: Hosting, folder: Path, protection: Protection, *, is_fresh: bool
    ) -> None:
        """Start it.

        Args:
            hosting: where it listens.
            folder: of its journal and its log.
            protection: what its clients must have.
            is_fresh: no other coordinator has left a journal there.

        Raises:
            OSError: the process cannot start.
        """
        self.log = folder / LOG
        self._folder = folder
        self._is_fresh = is_fresh
        self._lock = folder / LOCK
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(self.log, flags, 0o600)
        words = [*compute_command(hosting, folder), *protection.flags]
        token = protection.token
        try:
            started = subprocess.Popen(
                [sys.executable, *compute_flags(), "-m", "rallypoint", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(token),
                start_new_session=True,
            )
        finally:
            os.close(log)
        started.returncode = 0  # Popen would warn that it outlives this process
        self._process = ForkedProcess(started.pid)
        spared_children.add(self.pid)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def has_journal(self) -> bool:
        """Return whether it is the one that has the journal: then no other one has the port."""
        try:
            return self._lock.read_text() == str(self.pid)
        except OSError:
            return False

    def has_rival(self) -> bool:
        """Return whether a coordinator that another agent has started has the journal."""
        try:
            pid = self._lock.read_text()
        except OSError:
            return False
        if not pid:  # the one that has just locked it writes it next
            return True
        is_other = pid != str(self.pid) and pid.isdecimal()
        return is_other and _is_coordinator(int(pid), self._folder)

    def end(self) -> None:
        """Kill it, and wait for its end. Without the journal there is nothing to save."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait(END_S_MAX)

    def clear(self) -> None:
        """Remove the files of one that has ended and served no one, unless another one has them."""
        if self._is_fresh:
            remove_unused(self._folder)

    def has_ended(self) -> bool:
        """Return whether it has ended; it is then no process any more."""
        if self._process.poll() is None:
            return False
        spared_children.discard(self.pid)
        return True

    @property
    def exit_code(self) -> int | None:
        """The exit code, or minus the signal; None while it runs."""
        return self._process.returncode

    def wait(self, limit_s: float) -> bool:
        """Wait for its end; return whether it came within the limit."""
        return await_any_exit((self.pid,), round(limit_s * 1000)) and self.has_ended()


def _environment(token: str) -> dict[str, str]:
    """Return the environment of a coordinator.

    It lingers for no lost nodes in a step of Slurm, which ends whatever an agent leaves behind: it
    would leave its journal.
    """
    ends_with_agent = "SLURM_STEP_ID" in os.environ
    linger = {LINGER_VARIABLE: os.environ.get(LINGER_VARIABLE, "0")} if ends_with_agent else {}
    return os.environ | linger | ({TOKEN_VARIABLE: token} if token else {})


def end_lingering(port: int) -> None:
    """End a coordinator of this user that waits only for lost nodes of a job that is over.

    A new job must not wait for it, and may need another address, certificate or token. Blocks,
    within a limit.
    """
    found = find_lingering(port)
    if found is None or not _is_coordinator(found[1], found[0]):
        return
    folder, pid = found
    end_s = time.monotonic() + YIELD_S_MAX
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while find_lingering(port) == found and time.monotonic() < end_s:
            time.sleep(LOOK_S)
        if find_lingering(port) == found and _is_coordinator(pid, folder):
            os.kill(pid, signal.SIGKILL)
    remove_unused(folder)


def _is_coordinator(pid: int, folder: Path) -> bool:
    """Return whether a process is the coordinator whose journal is in a folder."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return _state_flag(folder).encode() in words


def _state_flag(folder: Path) -> str:
    return f"--state=sqlite:{folder / JOURNAL}"


def compute_command(hosting: Hosting, folder: Path) -> list[str]:
    """Return the command line of a hosted coordinator, after `rallypoint`."""
    # Other hosts need not reach an endpoint that none of them could name.
    host = hosting.host if is_loopback(hosting.host) else "0.0.0.0"
    window = (
        () if hosting.window_ms is None else (f"--startup-window={hosting.window_ms / 1000:g}",)
    )
    return [
        "coordinator",
        f"--host={host}",
        f"--port={hosting.port}",
        _state_flag(folder),
        f"--until-idle={hosting.unused_ms / 1000:g}",
        "--log-level=info",
        *window,
    ]
