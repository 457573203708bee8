"""One job under one launcher: its processes, the reports of its workers, and the end of both.

This module does not know which launcher runs. It waits for events only (a datagram of a worker, a
pidfd of a launcher), every wait has a limit, and no process that it started is left afterwards.
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

WORKER_SOURCE = """\
import time; clock_ns = time.monotonic_ns()
import os, socket, sys
inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
inbox.bind("")
fields = os.environ["RANK"], os.environ["WORLD_SIZE"], os.getpid(), clock_ns
inbox.sendto(" ".join(map(str, fields)).encode(), sys.argv[1])
inbox.recv(16)
"""


class MeasurementFailed(Exception):
    """An expected event did not happen; the text says which."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a worker reported about its start.

    clock_ns: CLOCK_MONOTONIC at its first line.
    address: where it waits to be released.
    """

    rank: int
    world_size: int
    pid: int
    clock_ns: int
    address: bytes


@dataclass(frozen=True, slots=True)
class Process:
    """A process that this benchmark started. pidfd: becomes readable when it ends."""

    name: str
    popen: subprocess.Popen[bytes]
    pidfd: int


def read_parent_and_start(pid: int) -> tuple[int, int]:
    """Return the parent's pid, and the start time in ticks, which exposes a reused pid."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), int(fields[19])


def list_tree(root: int) -> dict[int, int]:
    """Return root and all its descendants: pid to start time."""
    table: dict[int, tuple[int, int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                table[int(entry)] = read_parent_and_start(int(entry))
    tree = {root: table[root][1]} if root in table else {}
    found = [root]
    while found:
        parents = set(found)
        found = [pid for pid, (parent, _) in table.items() if parent in parents and pid not in tree]
        tree.update((pid, table[pid][1]) for pid in found)
    return tree


def measure_memory(root: int, workers: Iterable[int]) -> float:
    """Return the PSS of a launcher's processes without its workers, in MB (1,000,000 bytes)."""
    own = list_tree(root).keys() - set(workers)
    kibibytes = 0
    for pid in own:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                kibibytes += int(line.split()[1])
    return kibibytes * 1024 / 1e6


class Trial:
    """One job under one launcher: starts it, collects reports, and leaves no process behind."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="launch-")
        self.folder = Path(self._directory.name)
        """Folder for logs and other files, removed afterwards."""
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind(str(self.folder / "inbox"))
        self._processes: list[Process] = []
        self._workers: dict[int, int] = {}
        script = self.folder / "worker.py"
        script.write_text(WORKER_SOURCE)
        self.script = [str(script), str(self.folder / "inbox")]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end_all()
        if isinstance(error, MeasurementFailed):
            error.add_note(self._read_logs())
        self._inbox.close()
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
                    env={**clean_environment(), "XDG_STATE_HOME": str(self.folder / "state")},
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

    def read_address(self, coordinator: Process) -> str:
        """Return HOST:PORT from the coordinator's first line."""
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

    def collect(self, world_size: int, *, old: Iterable[int] = ()) -> list[Stamp]:
        """Wait until a worker of each rank has started in a world of this size.

        Args:
            old: pids of workers that do not count.

        Returns: the newest stamp per rank, in rank order.

        Raises: MeasurementFailed when that takes too long, or when a launcher ends before it.
        """
        deadline = time.monotonic() + WAIT_LIMIT_S
        stamps: dict[int, Stamp] = {}
        while len(stamps) < world_size:
            names = {process.pidfd: process.name for process in self._processes}
            waited: list[int] = [self._inbox.fileno(), *names]
            timeout = max(0.0, deadline - time.monotonic())
            ready = select.select(waited, [], [], timeout)[0]
            if self._inbox.fileno() in ready:
                stamp = self._receive()
                if stamp.world_size == world_size and stamp.pid not in old:
                    stamps[stamp.rank] = stamp
            elif ready:
                raise MeasurementFailed(f"{names[ready[0]]} ended before its workers ran")
            else:
                raise MeasurementFailed(f"only ranks {sorted(stamps)} of {world_size} started")
        return [stamps[rank] for rank in sorted(stamps)]

    def _receive(self) -> Stamp:
        message, address = self._inbox.recvfrom(256)
        rank, world_size, pid, clock_ns = map(int, message.split())
        with suppress(FileNotFoundError, ProcessLookupError):
            self._workers[pid] = read_parent_and_start(pid)[1]
        return Stamp(rank, world_size, pid, clock_ns, address)

    def release(self, stamps: Iterable[Stamp], launchers: Iterable[Process]) -> None:
        """Let the workers exit with 0; check that their launchers do the same."""
        for stamp in stamps:
            self._inbox.sendto(b"exit", stamp.address)
        for process in launchers:
            if not select.select([process.pidfd], [], [], WAIT_LIMIT_S)[0]:
                raise MeasurementFailed(f"{process.name} still runs after its workers ended")
            if process.popen.wait() != 0:
                raise MeasurementFailed(f"{process.name} exited with {process.popen.returncode}")

    def _end_all(self) -> None:
        """Send SIGTERM to every group, wait, send SIGKILL to every group and to leftovers."""
        leftovers = dict(self._workers)
        alive = [process for process in self._processes if process.popen.poll() is None]
        for process in alive:
            leftovers.update(list_tree(process.popen.pid))
            os.killpg(process.popen.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        for process in alive:
            select.select([process.pidfd], [], [], max(0.0, deadline - time.monotonic()))
            # Not reaped yet, so its pid has not been reused.
            os.killpg(process.popen.pid, signal.SIGKILL)
            process.popen.wait()
        for pid, started in leftovers.items():
            with suppress(FileNotFoundError, ProcessLookupError):
                if read_parent_and_start(pid)[1] == started:
                    os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            os.close(process.pidfd)
            if process.popen.stdout is not None:
                process.popen.stdout.close()

    def _read_logs(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        tails = ((log, log.read_bytes()[-LOG_TAIL_BYTES:]) for log in logs)
        return "\n".join(f"--- {log.stem}\n{tail.decode(errors='replace')}" for log, tail in tails)
