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
STARTED, MAIN, REDUCED = b"started", b"main", b"reduced"
"""The first line of the script, torch imported, the first all-reduce done."""
STEP_S = 0.05
"""Pause between the steps, so that the workers leave the cores to the launchers."""
REDUCE_LIMIT_S = 30.0
"""How long a process group may take to form. Some never do: its members have different keys."""
_SOURCE = f"""\
import time; started_ns = time.monotonic_ns()
import os, sys
import torch
import torch.distributed as dist
line = os.open(sys.argv[1], os.O_WRONLY)
def mark(kind, clock_ns):
    words = kind, os.getpid(), os.environ["RANK"], os.environ["WORLD_SIZE"], clock_ns
    os.write(line, " ".join(map(str, words)).encode().ljust({LINE_BYTES - 1}) + b"\\n")
mark("main", time.monotonic_ns())
mark("started", started_ns)
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
    """A world whose workers are all in their main program.

    pids: its workers by rank.
    started_ns, main_ns, reduced_ns: when the last of them got so far; None: it did not in time.
    """

    pids: tuple[int, ...]
    started_ns: int
    main_ns: int
    reduced_ns: int | None


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
        """Wait until all workers of a new world have done an all-reduce, or are in main for long.

        Args:
            world_size: how many they are.
            old: workers that do not count.
            limit_s: how long to wait.
            ends: pidfds of launchers, none of which may end.

        Raises:
            MeasurementFailed: it takes too long, or a launcher has ended.
        """
        deadline_s = time.monotonic() + limit_s
        found: dict[bytes, dict[int, Mark]] = {kind: {} for kind in (STARTED, MAIN, REDUCED)}
        is_in_main = False
        while not _is_world(found, REDUCED, world_size):
            if not is_in_main and _is_world(found, STARTED, world_size):
                is_in_main = True
                deadline_s = min(deadline_s, time.monotonic() + REDUCE_LIMIT_S)
            left_s = max(0.0, deadline_s - time.monotonic())
            ready = select.select([self._fd, *ends], [], [], left_s)[0]
            if not ready and is_in_main:
                break
            if not ready:
                known = ", ".join(f"{kind.decode()}: {len(each)}" for kind, each in found.items())
                raise MeasurementFailed(f"no new world in {limit_s:g} s ({known})")
            if self._fd not in ready:
                raise MeasurementFailed("a launcher ended before its workers ran")
            for line in os.read(self._fd, 64 * LINE_BYTES).splitlines():
                kind, *numbers = line.split()
                one = Mark(kind, *map(int, numbers))
                if one.pid not in old and one.world_size == world_size:
                    found[kind][one.rank] = one
        started, main, reduced = (found[kind] for kind in (STARTED, MAIN, REDUCED))
        is_reduced = _is_world(found, REDUCED, world_size)
        return Moments(
            pids=tuple(started[rank].pid for rank in sorted(started)),
            started_ns=max(one.clock_ns for one in started.values()),
            main_ns=max(one.clock_ns for one in main.values()),
            reduced_ns=max(one.clock_ns for one in reduced.values()) if is_reduced else None,
        )


def _is_world(found: dict[bytes, dict[int, Mark]], kind: bytes, world_size: int) -> bool:
    """Return whether every rank has got so far, and all marks are of these workers."""
    kinds = (STARTED, MAIN, REDUCED) if kind == REDUCED else (STARTED, MAIN)
    last = found[kind]
    return len(last) == world_size and all(
        found[each].get(rank) is not None and found[each][rank].pid == one.pid
        for rank, one in last.items()
        for each in kinds
    )
