"""Moments of workers: their script, and the pipe that collects what they write.

All processes of a machine share CLOCK_MONOTONIC. A mark is a line of one length in a named pipe,
which is written whole or not at all; so no worker waits for the reader, and the time that a mark
travels does not count.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from harness.trial import MeasurementFailed

LINE_BYTES = 64
"""Length of a mark; at most PIPE_BUF (4096), below which writes do not mix."""
MAIN, REDUCED = b"main", b"reduced"
"""Torch imported, the first all-reduce done."""
STEP_S = 0.1
"""Pause between the steps, so that the workers leave the cores to the launchers."""
_SOURCE = f"""\
import os, sys, time
import torch
import torch.distributed as dist
line = os.open(sys.argv[1], os.O_WRONLY)
def mark(kind, clock_ns):
    words = kind, os.getpid(), os.environ["RANK"], os.environ["WORLD_SIZE"], clock_ns
    os.write(line, " ".join(map(str, words)).encode().ljust({LINE_BYTES - 1}) + b"\\n")
mark("main", time.monotonic_ns())
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
mark("reduced", time.monotonic_ns())
while True:
    time.sleep({STEP_S})
    dist.all_reduce(total.fill_(1.0))
"""


@dataclass(frozen=True, slots=True)
class Mark:
    """One moment of a worker.

    kind: which one.
    clock_ns: CLOCK_MONOTONIC at that moment.
    """

    kind: bytes
    pid: int
    rank: int
    world_size: int
    clock_ns: int


@dataclass(frozen=True, slots=True)
class Moments:
    """A world whose workers have all done an all-reduce.

    pids: its workers by rank.
    main_ns, reduced_ns: when the last of them got so far.
    """

    pids: tuple[int, ...]
    main_ns: int
    reduced_ns: int


class Marks:
    """The pipe for the marks of all workers of a job."""

    def __init__(self, folder: Path) -> None:
        """Create the pipe and the workers' script in `folder`."""
        script, pipe = folder / "marking.py", folder / "marks"
        script.write_text(_SOURCE)
        os.mkfifo(pipe)
        # Open for writing too, so that the pipe does not end while no worker has it open.
        self._fd = os.open(pipe, os.O_RDWR)
        self.command = [str(script), str(pipe)]
        """The workers' script with its arguments."""

    def close(self) -> None:
        os.close(self._fd)

    def await_world(
        self, world_size: int, old: Collection[int], limit_s: float, ends: Collection[int] = ()
    ) -> Moments:
        """Wait until all workers of a new world have done an all-reduce.

        Args:
            world_size: how many they are.
            old: workers that do not count.
            limit_s: how long to wait.
            ends: pidfds of launchers, none of which may end.

        Raises:
            MeasurementFailed: it takes too long, or a launcher has ended.
        """
        deadline_s = time.monotonic() + limit_s
        main: dict[int, Mark] = {}
        reduced: dict[int, Mark] = {}
        while len(reduced) < world_size or not _are_alike(main, reduced):
            left_s = max(0.0, deadline_s - time.monotonic())
            ready = select.select([self._fd, *ends], [], [], left_s)[0]
            if not ready:
                known = f"in main: {len(main)}, all-reduce: {len(reduced)}"
                raise MeasurementFailed(f"no new world in {limit_s:g} s ({known})")
            if self._fd not in ready:
                raise MeasurementFailed("a launcher ended before its workers ran")
            for line in os.read(self._fd, 64 * LINE_BYTES).splitlines():
                kind, *numbers = line.split()
                one = Mark(kind, *map(int, numbers))
                if one.pid not in old and one.world_size == world_size:
                    (main if kind == MAIN else reduced)[one.rank] = one
        return Moments(
            pids=tuple(main[rank].pid for rank in sorted(main)),
            main_ns=max(one.clock_ns for one in main.values()),
            reduced_ns=max(one.clock_ns for one in reduced.values()),
        )


def _are_alike(main: dict[int, Mark], reduced: dict[int, Mark]) -> bool:
    """Return whether all marks are of the same workers."""
    return {rank: one.pid for rank, one in main.items()} == {
        rank: one.pid for rank, one in reduced.items()
    }
