"""What standbys cost the training beside them: steps a second with and without.

One job of two workers trains all the time, so nothing differs between two windows of a pair but the
standbys. Those that import do so at the pace that the agent gives them; in every other window they
are stopped (SIGSTOP), and their helper with them, which passes on the signals of the agent. Those
that wait are killed with their helper in every other window. The node makes others afterwards;
meanwhile the workers are stopped, so that it does not take long.
"""

from __future__ import annotations

import mmap
import os
import signal
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.trial import MeasurementFailed, Trial, read_parent_and_start
from recoveries.launchers import LOOK_S, Launcher, Node
from recoveries.memory import find_standbys

WORKERS = 2
BAR = 1.0
"""Percent of the steps that standbys may cost."""
PAIRS_MIN = 5
WAITING_WINDOW_S, MAKING_WINDOW_S = 8.0, 1.0
"""Less than the 10 s after which others are made, and two periods of the pace."""
SETTLE_S = 1.0
"""How long workers run after they were stopped, before anything counts."""
WARM_UP_STEPS = 200
START_LIMIT_S = 120.0
ERRORS = 2.0
"""Standard errors on either side of the mean that the interval has."""
# A step is a small model on the CPU, and an all-reduce of its gradients: it waits for the slower
# worker. The workers count in a file that all map: no step waits for a reader.
_SOURCE = """\
import mmap, os, struct, sys
import torch
import torch.distributed as dist
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, target = torch.randn(64, 256), torch.randint(0, 10, (64,))
file = os.open(sys.argv[1], os.O_RDWR)
counts = mmap.mmap(file, 0)
struct.pack_into("q", counts, 16 + 8 * rank, os.getpid())
step = 0
while True:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(data), target).backward()
    optimizer.step()
    step += 1
    struct.pack_into("q", counts, 8 * rank, step)
"""


@dataclass
class Cost:
    """What one state of the standbys costs.

    state: what they do.
    percent: of each pair: by how much the steps per second are fewer with them.
    rates: steps per second without them, in the same order.
    used: processors that they used, of each pair.
    """

    state: str
    percent: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return statistics.mean(self.percent)

    @property
    def error(self) -> float:
        """Half the width of the interval in which the mean lies."""
        if len(self.percent) < 2:
            return float("inf")
        return float(ERRORS * statistics.stdev(self.percent) / len(self.percent) ** 0.5)

    @property
    def is_known(self) -> bool:
        """Whether enough pairs say on which side of the bar it is."""
        return len(self.percent) >= PAIRS_MIN and self.error < BAR / 2


class Counter:
    """The steps that the workers have done."""

    def __init__(self, folder: Path) -> None:
        script, path = folder / "training.py", folder / "steps"
        script.write_text(_SOURCE)
        path.write_bytes(bytes(32))
        self.command = [str(script), str(path)]
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def read(self) -> int:
        return min(self._numbers(0))

    def pids(self) -> tuple[int, ...]:
        return self._numbers(16)

    def _numbers(self, offset: int) -> tuple[int, ...]:
        return tuple(map(int, struct.unpack_from("2q", self._map, offset)))

    def rate(self, window_s: float) -> float:
        """Return the steps per second of the next seconds."""
        began, began_s = self.read(), time.monotonic()
        time.sleep(window_s)
        return (self.read() - began) / (time.monotonic() - began_s)


def measure(limit_s: float) -> list[Cost]:
    """Return what standbys cost while they wait, and while they import.

    Args:
        limit_s: how long to take pairs at most.

    Raises:
        MeasurementFailed: workers or standbys did not come.
    """
    waiting, making = Cost("they wait"), Cost("they are made")
    with Trial() as trial:
        counter = Counter(trial.folder)
        node = Node(trial, Launcher.WARM, counter.command, WORKERS)
        _await(lambda: counter.read() >= WARM_UP_STEPS, START_LIMIT_S, "the workers do not train")
        pace_until_s = time.monotonic() + limit_s / 2
        deadline_s = time.monotonic() + limit_s
        _take_making(making, counter, node, pace_until_s)
        made = 0  # the log does not say that standbys were killed
        while time.monotonic() < deadline_s and not waiting.is_known:
            with _stopped(counter.pids()):
                _await(
                    lambda count=made: node.events.count_made() > count,  # type: ignore[misc]
                    START_LIMIT_S,
                    "no standbys were made",
                )
            made = node.events.count_made()
            time.sleep(SETTLE_S)
            standbys = find_standbys(node.agent.popen.pid, counter.pids())
            with_them, used = _measure(counter, WAITING_WINDOW_S, standbys)
            _kill(standbys)
            _add(waiting, with_them=with_them, without=counter.rate(WAITING_WINDOW_S), used=used)
    return [waiting, making]


def _take_making(cost: Cost, counter: Counter, node: Node, deadline_s: float) -> None:
    """Take pairs until standbys are ready, or the time is over."""
    while node.events.count_made() == 0 and time.monotonic() < deadline_s:
        found = find_standbys(node.agent.popen.pid, counter.pids())
        importing = [pid for pid in found if _is_low(pid)]
        if not importing or not node.events.is_paced():
            time.sleep(LOOK_S)
            continue
        pid = importing[-1]
        with_first = len(cost.percent) % 2 == 0  # the order changes: a trend does not count
        rates: dict[bool, float] = {}
        used = 0.0
        for is_with in (with_first, not with_first):
            if is_with:
                rates[True], used = _measure(counter, MAKING_WINDOW_S, [pid])
            else:
                with _stopped((_parent_of(pid), pid)):
                    rates[False] = counter.rate(MAKING_WINDOW_S)
        if _is_low(pid):  # else it was ready before the end of a window
            _add(cost, with_them=rates[True], without=rates[False], used=used)


def _measure(counter: Counter, window_s: float, standbys: Sequence[int]) -> tuple[float, float]:
    """Return the steps per second of the next seconds, and the processors that standbys used."""
    before_s, began_s = _spent_s(standbys), time.monotonic()
    rate = counter.rate(window_s)
    return rate, (_spent_s(standbys) - before_s) / (time.monotonic() - began_s)


def _spent_s(pids: Sequence[int]) -> float:
    """Return the processor time of processes, with all their threads."""
    spent_ns = 0
    for pid in pids:
        with suppress(OSError):  # it has ended
            for task in Path(f"/proc/{pid}/task").iterdir():
                spent_ns += int((task / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


@contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes for a while, in this order, and continue them in the other one."""
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            _send(pid, signal.SIGCONT)


def _add(cost: Cost, *, with_them: float, without: float, used: float) -> None:
    cost.percent.append(100 * (1 - with_them / without))
    cost.rates.append(without)
    cost.used.append(used)
    text = f"{cost.percent[-1]:+.2f} % (mean {cost.mean:+.2f} % ± {cost.error:.2f})"
    print(f"cost while {cost.state}: {text}", file=sys.stderr)


def _is_low(pid: int) -> bool:
    """Return whether a standby imports: it has its low priority."""
    try:
        return os.sched_getscheduler(pid) in (os.SCHED_IDLE, os.SCHED_BATCH)
    except ProcessLookupError:
        return False


def _kill(standbys: Sequence[int]) -> None:
    """Kill the helper of the standbys, and so all of them."""
    if not standbys:
        raise MeasurementFailed("the standbys have ended")
    _send(_parent_of(standbys[0]), signal.SIGKILL)


def _parent_of(pid: int) -> int:
    return read_parent_and_start(pid)[0]


def _send(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def _await(is_done: Callable[[], bool], limit_s: float, text: str) -> None:
    for _ in _ticks(limit_s):
        if is_done():
            return
    raise MeasurementFailed(text)


def _ticks(limit_s: float) -> Iterator[None]:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        yield
        time.sleep(LOOK_S)
