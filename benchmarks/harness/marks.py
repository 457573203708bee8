"""Moments of workers: their scripts, and the pipe that collects what they write.

All processes of a machine share CLOCK_MONOTONIC. A mark is a line of one length in a named pipe,
which is written whole or not at all; the pipe holds a thousand. So nothing polls, no worker waits
for the reader, and the time that a mark travels does not count.

A bare worker reads the clock in its first statement, and imports only modules that are compiled
into the interpreter. It blocks SIGTERM and waits for it, so it takes its mark as soon as the kernel
wakes it. Then it exits at once: 64 interpreters that clean up would take the cores from workers
that still have to write theirs. A worker that trains imports torch.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.trial import MeasurementFailed

LINE_BYTES = 64
"""Length of a mark; at most PIPE_BUF (4096), below which writes do not mix."""
START, TERM = b"start", b"term"
"""The first line of a bare worker was reached, SIGTERM has reached it."""
MAIN, REDUCED = b"main", b"reduced"
"""Torch imported, the first all-reduce done."""
TOOK, COUNT = b"took", b"count"
"""Not moments: how long a worker has trained, in nanoseconds, and how many steps."""
STEP_S = 0.1
"""Pause between the steps, so that the workers leave the cores to the launchers."""
_MARK = f"""\
line = os.open(sys.argv[1], os.O_WRONLY)
def mark(kind, clock_ns):
    words = kind, os.getpid(), os.environ["RANK"], os.environ["WORLD_SIZE"], clock_ns
    os.write(line, " ".join(map(str, words)).encode().ljust({LINE_BYTES - 1}) + b"\\n")
"""
BARE = f"""\
import time; clock_ns = time.monotonic_ns()
import _signal, os, sys
_signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM])
{_MARK}
mark("start", clock_ns)
_signal.sigwaitinfo([_signal.SIGTERM])
mark("term", time.monotonic_ns())
os._exit(0)
"""
TRAINING = f"""\
import os, sys, time
import torch
import torch.distributed as dist
{_MARK}
mark("main", time.monotonic_ns())
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
mark("reduced", time.monotonic_ns())
while True:
    time.sleep({STEP_S})
    dist.all_reduce(total.fill_(1.0))
"""
WARM_STEPS, STEPS_S = 20, 6.0
"""Steps before the count begins, and how long it lasts."""
STEPS = f"""\
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
{_MARK}
torch.set_num_threads(1)
dist.init_process_group("gloo")
layers = (layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU()))
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
batch = torch.ones(32, 256)
def step():
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
for _ in range({WARM_STEPS}):
    step()
dist.barrier()
began_ns, count, over = time.monotonic_ns(), 0, torch.zeros(1)
while not over:
    step()
    count += 1
    if count % 10 == 0:  # all ranks stop at the same step
        over.fill_(time.monotonic_ns() - began_ns > {STEPS_S} * 1e9)
        dist.broadcast(over, 0)
mark("took", time.monotonic_ns() - began_ns)
mark("count", count)
dist.destroy_process_group()
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
    """A world whose workers have all got as far as they were waited for.

    pids: its workers by rank.
    last_ns: when the last of them got so far, for each kind of mark.
    """

    pids: tuple[int, ...]
    last_ns: tuple[int, ...]


class Marks:
    """The pipe for the marks of all workers of a job."""

    def __init__(self, folder: Path, source: str) -> None:
        """Create the pipe and the workers' script in `folder`."""
        script, pipe = folder / "marking.py", folder / "marks"
        script.write_text(source)
        os.mkfifo(pipe)
        # Open for writing too, so that the pipe does not end while no worker has it open.
        self._fd = os.open(pipe, os.O_RDWR)
        self.script = [str(script), str(pipe)]
        """The workers' script with its arguments."""
        self.program = [sys.executable, "-I", "-S", *self.script]
        """The same as a program, with an interpreter that starts as fast as it can."""

    def close(self) -> None:
        os.close(self._fd)

    def until(self, deadline_s: float, ends: Collection[int] = ()) -> Iterator[Mark]:
        """Yield marks as they come, until time.monotonic() has reached the deadline.

        Args:
            deadline_s: the deadline.
            ends: pidfds of launchers, none of which may end.

        Raises:
            MeasurementFailed: a launcher has ended.
        """
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            ready = select.select([self._fd, *ends], [], [], left_s)[0]
            if not ready:
                return
            if self._fd not in ready:
                raise MeasurementFailed("a launcher ended before its workers ran")
            for line in os.read(self._fd, 64 * LINE_BYTES).splitlines():
                kind, *numbers = line.split()
                yield Mark(kind, *map(int, numbers))

    def await_world(
        self,
        world_size: int,
        kinds: Sequence[bytes],
        limit_s: float,
        *,
        old: Collection[int] = (),
        ends: Collection[int] = (),
    ) -> Moments:
        """Wait until all workers of a new world have got as far as these marks.

        Args:
            world_size: how many they are.
            kinds: the marks.
            limit_s: how long to wait.
            old: workers that do not count.
            ends: pidfds of launchers, none of which may end.

        Raises:
            MeasurementFailed: it takes too long, or a launcher has ended.
        """
        seen: dict[bytes, dict[int, Mark]] = {kind: {} for kind in kinds}
        for mark in self.until(time.monotonic() + limit_s, ends):
            if mark.kind not in seen or mark.pid in old or mark.world_size != world_size:
                continue
            seen[mark.kind][mark.rank] = mark
            worlds = [{rank: one.pid for rank, one in of.items()} for of in seen.values()]
            if len(worlds[0]) == world_size and all(world == worlds[0] for world in worlds):
                last_ns = (max(one.clock_ns for one in of.values()) for of in seen.values())
                pids = tuple(pid for _, pid in sorted(worlds[0].items()))
                return Moments(pids, tuple(last_ns))
        known = ", ".join(f"{kind.decode()}: {len(of)}" for kind, of in seen.items())
        raise MeasurementFailed(f"no new world of {world_size} in {limit_s:g} s ({known})")
