"""Workers that report when they started and when SIGTERM reached them, at the least possible cost.

A worker's first statement reads CLOCK_MONOTONIC, which all processes of a machine share. The worker
imports only modules that are compiled into the interpreter. It blocks SIGTERM and waits for it, so
it takes the stamp as soon as the kernel wakes it. Then it exits at once: 64 interpreters that clean
up would take the cores from workers that still have to stamp. Stamps are lines of one length in a
named pipe, which are written whole or not at all; the pipe holds a thousand. So nothing polls, no
worker waits for the reader, and the time that a stamp travels does not count.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LINE_BYTES = 64
"""Length of a stamp; at most PIPE_BUF (4096), below which writes do not mix."""
_WORKER_SOURCE = f"""\
import time; clock_ns = time.monotonic_ns()
import _signal, os, sys
_signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM])
line = os.open(sys.argv[1], os.O_WRONLY)
def stamp(kind, clock_ns):
    words = kind, os.getpid(), os.environ["RANK"], os.environ["WORLD_SIZE"], clock_ns
    os.write(line, " ".join(map(str, words)).encode().ljust({LINE_BYTES - 1}) + b"\\n")
stamp("start", clock_ns)
_signal.sigwaitinfo([_signal.SIGTERM])
stamp("term", time.monotonic_ns())
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Stamp:
    """One moment of a worker.

    is_start: its first line was reached; else SIGTERM was.
    clock_ns: CLOCK_MONOTONIC at that moment.
    """

    is_start: bool
    pid: int
    rank: int
    world_size: int
    clock_ns: int


class Stamps:
    """The pipe for the stamps of all workers of a job."""

    def __init__(self, folder: Path) -> None:
        """Create the pipe and the worker's script in `folder`."""
        script, pipe = folder / "stamping.py", folder / "stamps"
        script.write_text(_WORKER_SOURCE)
        os.mkfifo(pipe)
        # Open for writing too, so that the pipe does not end while no worker has it open.
        self._fd = os.open(pipe, os.O_RDWR)
        self.command = [sys.executable, "-I", "-S", str(script), str(pipe)]
        """A worker's program with its arguments."""

    def close(self) -> None:
        os.close(self._fd)

    def until(self, deadline_s: float) -> Iterator[Stamp]:
        """Yield stamps as they come, until time.monotonic() has reached the deadline."""
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([self._fd], [], [], left_s)[0]:
                return
            for line in os.read(self._fd, 64 * LINE_BYTES).splitlines():
                kind, *numbers = line.split()
                yield Stamp(kind == b"start", *map(int, numbers))
