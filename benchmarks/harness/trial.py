"""The processes of one measurement: they are started, their logs are kept, and none is left.

It waits for events only (a line, a pidfd), every wait has a limit, and no process that it started
is left afterwards, nor a descendant of one.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.installed import clean_environment

# Longest wait for a launcher. A recovery takes seconds; after a minute it will not come.
WAIT_LIMIT_S = 60.0
# How long a launcher may take to end after SIGTERM before it is killed.
GRACE_S = 10.0
# Bytes of each process's output that are shown when a measurement fails.
LOG_TAIL_BYTES = 4000


class MeasurementFailed(Exception):
    """An expected event did not happen; the text says which."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that this benchmark started. pidfd: becomes readable when it ends."""

    name: str
    popen: subprocess.Popen[bytes]
    pidfd: int


def read_parent(pid: int) -> int:
    """Return the parent's pid."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def list_pids() -> list[int]:
    """Return all processes of this machine."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def list_tree(root: int) -> set[int]:
    """Return root and all its descendants."""
    parents: dict[int, int] = {}
    for pid in list_pids():
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[pid] = read_parent(pid)
    tree, found = {root}, {root}
    while found:
        found = {pid for pid, parent in parents.items() if parent in found} - tree
        tree |= found
    return tree


def measure_memory(root: int, workers: Iterable[int]) -> float:
    """Return the PSS of a launcher's processes without its workers, in MB (1,000,000 bytes)."""
    own = list_tree(root) - set(workers)
    kibibytes = 0
    for pid in own:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                kibibytes += int(line.split()[1])
    return kibibytes * 1024 / 1e6


def await_listening(endpoint: str) -> None:
    """Wait until something listens there.

    Raises:
        MeasurementFailed: nothing does within the limit.
    """
    host, _, port = endpoint.rpartition(":")
    deadline_s = time.monotonic() + WAIT_LIMIT_S
    while time.monotonic() < deadline_s:
        with suppress(OSError), socket.create_connection((host, int(port)), 1.0):
            return
        time.sleep(0.02)
    raise MeasurementFailed(f"nothing listens at {endpoint}")


def free_endpoint() -> str:
    """Return an address of this machine with a port that no other process has now."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        return f"127.0.0.1:{reserved.getsockname()[1]}"


class Trial:
    """Starts processes, and leaves none behind."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="launch-")
        self.folder = Path(self._directory.name)
        """Folder for logs and other files, removed afterwards."""
        self._state = str(self.folder / "state")
        self._processes: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end_all()
        if isinstance(error, MeasurementFailed):
            error.add_note(self._read_logs())
        self._directory.cleanup()

    def start(self, command: list[str], *, stdout: int | None = None) -> Process:
        """Start a command beside this interpreter, or one with a path, in a new process group."""
        binary = Path(sys.executable).parent / command[0]
        name = f"{len(self._processes)}-{binary.name}"
        with self._log(name).open("wb") as log:
            try:
                popen = subprocess.Popen(
                    [str(binary), *command[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=log if stdout is None else stdout,
                    stderr=log,
                    start_new_session=True,
                    # A coordinator that a node hosts leaves nothing in the user's folders.
                    env={**clean_environment(), "XDG_STATE_HOME": self._state},
                )
            except OSError as error:
                raise MeasurementFailed(f"cannot start {binary}: {error.strerror}") from error
        process = Process(name, popen, os.pidfd_open(popen.pid))
        self._processes.append(process)
        return process

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def log(self, process: Process) -> Path:
        """Return where a process's standard error is written."""
        return self._log(process.name)

    def start_coordinator(self, *flags: str) -> tuple[Process, str]:
        """Start a coordinator on this host; return it, and its HOST:PORT once it listens.

        Args:
            flags: more than its host; without a port it chooses one.

        Raises:
            MeasurementFailed: it does not listen in time.
        """
        command = ["coordinator", "--host=127.0.0.1", "--port=0", *flags]
        process = self.start(command, stdout=subprocess.PIPE)
        return process, self.read_address(process)

    def read_address(self, coordinator: Process) -> str:
        """Return HOST:PORT from the coordinator's first line.

        Raises:
            MeasurementFailed: it does not listen in time.
        """
        pipe = coordinator.popen.stdout
        assert pipe is not None
        line, deadline = b"", time.monotonic() + WAIT_LIMIT_S
        while not line.endswith(b"\n"):
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise MeasurementFailed("the coordinator did not print its address")
            byte = os.read(pipe.fileno(), 1)
            if not byte:
                raise MeasurementFailed("the coordinator ended before it listened")
            line += byte
        return line.decode().strip().removeprefix("listening on ")

    def await_success(self, processes: Iterable[Process]) -> None:
        """Wait until processes have exited with 0.

        Raises:
            MeasurementFailed: one takes too long, or exits with something else.
        """
        for process in processes:
            if not select.select([process.pidfd], [], [], WAIT_LIMIT_S)[0]:
                raise MeasurementFailed(f"{process.name} still runs after its workers ended")
            if process.popen.wait() != 0:
                raise MeasurementFailed(f"{process.name} exited with {process.popen.returncode}")

    def _end_all(self) -> None:
        """Send SIGTERM to every group, wait, send SIGKILL to every group and to what remains."""
        alive = [process for process in self._processes if process.popen.poll() is None]
        for process in alive:
            os.killpg(process.popen.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        for process in alive:
            select.select([process.pidfd], [], [], max(0.0, deadline - time.monotonic()))
            # Not reaped yet, so its pid has not been reused.
            os.killpg(process.popen.pid, signal.SIGKILL)
            process.popen.wait()
        self._kill_left()
        for process in self._processes:
            os.close(process.pidfd)
            if process.popen.stdout is not None:
                process.popen.stdout.close()

    def _kill_left(self) -> None:
        """Kill what the launchers have left running, wherever it is in the tree by now.

        A worker of a killed torchrun runs until its collective fails, and NVRx's ft_launcher leaves
        its monitors. All of them have the environment of their launcher.
        """
        mark = f"XDG_STATE_HOME={self._state}".encode()
        for pid in list_pids():
            with suppress(OSError):  # it has ended, or is another user's
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)

    def _read_logs(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        tails = ((log, log.read_bytes()[-LOG_TAIL_BYTES:]) for log in logs)
        return "\n".join(f"--- {log.stem}\n{tail.decode(errors='replace')}" for log, tail in tails)
