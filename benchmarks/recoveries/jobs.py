"""A job of two nodes under each launcher: its commands, its standbys, its memory."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path

from harness.quickest import meet_at, torchrun
from harness.trial import MeasurementFailed, Process, Trial, list_tree, measure_memory
from rallypoint.agent.warm.command import FD_ENV

NODES = 2
RESTARTS = ("--max-restarts", "3")
READY_LIMIT_S = 300.0
"""How long the standbys of a node may take: they are made 10 s after a round has begun, one after
another, with what other programs leave of the processors."""
LOOK_S = 0.2
"""How often the log of an agent is read."""


class Launcher(StrEnum):
    TORCHRUN = "torchrun, quickest settings"
    COLD = "Rallypoint"
    WARM = "Rallypoint, `--warm torch`"


class Job:
    """Two nodes of this machine that meet at the first: it hosts the coordinator, or the store."""

    def __init__(
        self, trial: Trial, launcher: Launcher, script: Sequence[str], workers: int
    ) -> None:
        """Start both nodes.

        Args:
            trial: owns the processes.
            launcher: which one; ours has its default policies.
            script: the workers' script with its arguments.
            workers: of each node.
        """
        self.launcher = launcher
        self._trial = trial
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            endpoint = f"127.0.0.1:{reserved.getsockname()[1]}"
        each = ["--nproc-per-node", str(workers), *RESTARTS]
        if launcher is Launcher.TORCHRUN:
            command = torchrun(*meet_at(endpoint), "--rdzv-id", "recovery", *each)
        else:
            command = ["node-agent", "--nnodes", "2", "--rdzv-endpoint", endpoint, *each]
            command += ["--log-format", "json"]
            command += ["--warm", "torch"] if launcher is Launcher.WARM else []
        self.began_ns = time.monotonic_ns()
        """CLOCK_MONOTONIC just before the first command."""
        self.agents: list[Process] = [trial.start([*command, *script]) for _ in range(NODES)]

    @property
    def ends(self) -> list[int]:
        """Pidfds, each readable when its agent has ended."""
        return [agent.pidfd for agent in self.agents]

    def await_standbys(self, workers: Collection[int]) -> None:
        """Wait until there is a standby for each worker, if the launcher makes any.

        Raises:
            MeasurementFailed: it takes too long, or an agent has ended.
        """
        deadline_s = time.monotonic() + READY_LIMIT_S
        while self.launcher is Launcher.WARM and not all(map(self._is_ready, self.agents)):
            if time.monotonic() > deadline_s:
                raise MeasurementFailed("no standbys were made")
            if select.select(self.ends, [], [], LOOK_S)[0]:
                raise MeasurementFailed("an agent has ended")
        found = len(self._find_standbys(workers))
        if self.launcher is Launcher.WARM and found != len(workers):
            raise MeasurementFailed(f"{found} standbys for {len(workers)} workers")

    def count_warm(self) -> int:
        """Return how many workers were standbys before."""
        events = [event for agent in self.agents for event in self._events(agent)]
        return sum(
            int(str(event["workers"])) for event in events if event["event"] == "warm_started"
        )

    def measure_memory(self, workers: Collection[int]) -> tuple[float, float]:
        """Return the PSS of the launcher on both nodes, and of its standbys, in MB.

        The launcher is everything but workers and standbys: agents, their helpers, and the
        coordinator or the store.
        """
        standbys = self._find_standbys(workers)
        roots = [agent.popen.pid for agent in self.agents]
        launcher = sum(measure_memory(root, {*workers, *standbys}) for root in roots)
        all_of_it = sum(measure_memory(root, workers) for root in roots)
        return launcher, max(0.0, all_of_it - launcher) if standbys else 0.0

    def _is_ready(self, agent: Process) -> bool:
        return any(event["event"] == "standbys_ready" for event in self._events(agent))

    def _events(self, agent: Process) -> list[dict[str, object]]:
        lines = self._trial.log(agent).read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line[:1] == "{" and line[-1:] == "}"]

    def _find_standbys(self, workers: Collection[int]) -> list[int]:
        trees = [list_tree(agent.popen.pid).keys() for agent in self.agents]
        return [pid for tree in trees for pid in tree if pid not in workers and _is_standby(pid)]


def _is_standby(pid: int) -> bool:
    try:
        return f"{FD_ENV}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has just ended
        return False
