"""What the workers of all jobs report: a thread reads it, and others wait for it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.trial import MeasurementFailed

WORD_END = b"end"


@dataclass(frozen=True, slots=True)
class Start:
    """A worker that has started."""

    job: str
    run: int
    round: int
    node: str
    local_rank: int
    rank: int
    world: int
    restarts: int
    """TORCHELASTIC_RESTART_COUNT."""
    pid: int
    token: str
    """With it, the benchmark reads the keys of the job."""
    address: bytes


class Board:
    """Everything that was reported. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "board"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._changed = threading.Condition()  # its lock may be taken twice by one thread
        self._starts: list[Start] = []
        self._steps: dict[int, int] = {}
        self._wrong: list[str] = []
        self._thread = threading.Thread(target=self._read, name="board")
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto(WORD_END, str(self.path))
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        while (message := self._socket.recvfrom(8192))[0] != WORD_END:
            facts = json.loads(message[0])
            with self._changed:
                self._take(facts, message[1])
                self._changed.notify_all()

    def _take(self, facts: dict[str, Any], address: bytes) -> None:
        kind = facts.pop("kind")
        if kind == "start":
            self._starts.append(Start(address=address, **facts))
        elif kind == "step":
            self._steps[facts["pid"]] = facts["step"]
        elif kind == "wrong":
            self._wrong.append(f"{facts['job']}, rank {facts['rank']}: {facts['text']}")

    def starts(self, job: str, round: int) -> list[Start]:
        """Return the workers that have started in a round, by rank."""
        with self._changed:
            found = [one for one in self._starts if (one.job, one.round) == (job, round)]
        return sorted(found, key=lambda one: one.rank)

    def count_starts(self, job: str) -> int:
        """Return how many workers of a job have started."""
        with self._changed:
            return sum(one.job == job for one in self._starts)

    def take_wrong(self) -> list[str]:
        """Return what workers have found wrong since the last call."""
        with self._changed:
            wrong, self._wrong = self._wrong, []
            return wrong

    def step(self, pid: int) -> int:
        """Return the last step that a worker has reported; 0: none."""
        with self._changed:
            return self._steps.get(pid, 0)

    def await_starts(self, job: str, round: int, count: int, limit_s: float) -> list[Start]:
        """Wait for so many workers of a round; return them by rank."""
        self._await(lambda: len(self.starts(job, round)) >= count, limit_s)
        found = self.starts(job, round)
        if len(found) < count:
            raise MeasurementFailed(
                f"{job}: {len(found)} of {count} workers have started in round {round}"
            )
        return found

    def await_steps(self, workers: list[Start], more: int, limit_s: float) -> None:
        """Wait until each of these workers is at least so many steps further than now."""
        begun = {one.pid: self.step(one.pid) for one in workers}
        self._await(
            lambda: all(self.step(pid) >= step + more for pid, step in begun.items()), limit_s
        )
        slow = [one.rank for one in workers if self.step(one.pid) < begun[one.pid] + more]
        if slow:
            raise MeasurementFailed(f"{workers[0].job}: ranks {slow} do not step")

    def _await(self, is_reached: Callable[[], bool], limit_s: float) -> None:
        with self._changed:
            self._changed.wait_for(is_reached, limit_s)

    def say(self, worker: Start, words: str) -> None:
        """Send words to a worker; it may have ended."""
        with suppress(ConnectionRefusedError, FileNotFoundError):
            self._socket.sendto(words.encode(), worker.address)
