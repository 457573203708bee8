"""A long-lived job of N agents with one worker each, and its coordinator.

The workers are bare (see `marks`). The job can do without one node, so the survivors of a
node's death continue, and it grows again at once when another node comes.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from harness.marks import BARE, TERM, Mark, Marks
from harness.trial import WAIT_LIMIT_S, MeasurementFailed, Process, Trial, read_parent

START_LIMIT_S = 180.0
"""Longest wait for the first round. A hundred agents on two cores import gRPC for half of it."""
MANY = "100000"
"""More restarts than any measurement uses."""
# No pauses or limits after repeated failures: each failure is treated like the first.
AGENT_FLAGS = [
    *("--max-restarts", MANY, "--max-reformations", MANY),
    *("--restart-backoff", "0", "--crash-loop", "0", "--quarantine-after", "0"),
    *("--settle-time", "0", "--grow-after", "0", "--shutdown-timeout", "10"),
    *("--last-call", "60"),  # the first round waits for all
]


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What followed a failure, in CLOCK_MONOTONIC ns; both in order of time.

    terms: SIGTERM reached a worker, one per worker that was to get it.
    starts: a worker of the next round started, one per worker; empty when nothing happened in time.
    """

    terms: list[int]
    starts: list[int]


class Fleet:
    """A job, its agents and its coordinator."""

    def __init__(self, trial: Trial, size: int) -> None:
        self.trial = trial
        self.size = size
        self.marks = Marks(trial.folder, BARE)
        self.agents: dict[int, Process] = {}
        """By pid."""
        self.workers: dict[int, Mark] = {}
        """Starts of the workers of the round that runs, by pid."""
        self._names: dict[int, str] = {}
        self.coordinator, self.address = trial.start_coordinator("--log-format=json")
        self.job_id = f"fleet-{os.getpid()}"

    def close(self) -> None:
        self.marks.close()

    def start(self) -> None:
        """Start everything, and wait for a round of all."""
        for number in range(self.size):
            self.add(f"n{number}")
        if not self.await_round(self.size, START_LIMIT_S).starts:
            raise MeasurementFailed("no worker has started")

    def add(self, name: str) -> None:
        """Start an agent."""
        where = ["--coordinator", self.address, "--job-id", self.job_id, "--node-name", name]
        nodes = ["--local-addr", "127.0.0.1", "--nnodes", f"{max(1, self.size - 1)}:{self.size}"]
        command = ["node-agent", *where, *nodes, *AGENT_FLAGS, "--no-python"]
        process = self.trial.start([*command, *self.marks.program])
        self.agents[process.popen.pid] = process
        self._names[process.popen.pid] = name

    def agent_of(self, worker: int) -> int:
        """Return the pid of the agent that a worker descends from."""
        pid = worker
        while pid not in self.agents:
            pid = read_parent(pid)
            if pid <= 1:
                raise MeasurementFailed(f"worker {worker} has no agent")
        return pid

    def kill_agent(self, pid: int) -> str:
        """SIGKILL to an agent; return its name."""
        self.agents[pid].popen.kill()
        self.agents.pop(pid).popen.wait()
        return self._names.pop(pid)

    def await_round(self, world_size: int, limit_s: float = WAIT_LIMIT_S) -> Aftermath:
        """Wait until a new round of this size runs."""
        return self.observe((), world_size, limit_s)

    def observe(
        self, expected: Collection[int], world_size: int, limit_s: float = WAIT_LIMIT_S
    ) -> Aftermath:
        """Wait until the workers `expected` got SIGTERM and a new round of this size runs.

        Returns: an empty aftermath when nothing happened within the limit.

        Raises: MeasurementFailed when only some workers followed.
        """
        terms: dict[int, int] = {}
        started: dict[int, Mark] = {}
        for mark in self.marks.until(time.monotonic() + limit_s):
            if mark.kind == TERM:
                started.pop(mark.pid, None)  # of a round that was given up
                if mark.pid in expected:
                    terms[mark.pid] = mark.clock_ns
            elif mark.world_size == world_size and mark.pid not in self.workers:
                started[mark.pid] = mark
            ranks = {mark.rank for mark in started.values()}
            if len(terms) == len(expected) and ranks == set(range(world_size)):
                self.workers = started
                starts = sorted(mark.clock_ns for mark in started.values())
                return Aftermath(sorted(terms.values()), starts)
        if not terms and not started:
            return Aftermath([], [])
        raise MeasurementFailed(
            f"SIGTERM reached {len(terms)} of {len(expected)} workers, "
            f"{len(started)} of {world_size} started"
        )

    def count_events(self) -> Counter[str]:
        """Return how often each event is in the coordinator's log so far."""
        lines = self.trial.log(self.coordinator).read_text().splitlines()
        # The last line may be incomplete.
        whole = (line for line in lines if line.startswith("{") and line.endswith("}"))
        return Counter(str(json.loads(line)["event"]) for line in whole)


def end_worker(pidfd: int) -> None:
    """SIGKILL to a worker that its launcher may have left behind."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
