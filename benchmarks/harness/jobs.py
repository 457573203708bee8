"""A job whose workers import torch, under each launcher: its commands, its memory."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path

from harness.quickest import meet_at, torchrun
from harness.trial import MeasurementFailed, Process, Trial, free_endpoint, measure_memory
from rallypoint.agent.preload.command import FDS_ENV

RESTARTS = ("--max-restarts", "3")


class Launcher(StrEnum):
    TORCHRUN = "torchrun, quickest settings"
    COLD = "Rallypoint"
    PRELOAD = "Rallypoint, `--preload torch`"


class Job:
    """Nodes of this machine that meet at the first: it hosts the coordinator, or the store."""

    def __init__(
        self, trial: Trial, launcher: Launcher, script: Sequence[str], *, nodes: int, workers: int
    ) -> None:
        """Start all nodes.

        Args:
            trial: owns the processes.
            launcher: which one; ours has its default policies.
            script: the workers' script with its arguments.
            nodes: how many.
            workers: of each node.
        """
        self.launcher = launcher
        command = _find_command(launcher, nodes)
        command += ["--nproc-per-node", str(workers), *RESTARTS]
        self.began_ns = time.monotonic_ns()
        """CLOCK_MONOTONIC just before the first command."""
        self.agents: list[Process] = [trial.start([*command, *script]) for _ in range(nodes)]

    @property
    def ends(self) -> list[int]:
        """Pidfds, each readable when its agent has ended."""
        return [agent.pidfd for agent in self.agents]

    def measure_memory(self, workers: Collection[int] = ()) -> float:
        """Return the PSS of all processes on all nodes but these workers, in MB."""
        return sum(measure_memory(agent.popen.pid, workers) for agent in self.agents)

    def check_forked(self, workers: Collection[int]) -> None:
        """Check that all workers were forked from a process that has preloaded, if there is one.

        Raises:
            MeasurementFailed: some were not.
        """
        forked = sum(map(_is_forked, workers))
        if self.launcher is Launcher.PRELOAD and forked != len(workers):
            raise MeasurementFailed(f"{forked} of {len(workers)} workers were forked")


def _find_command(launcher: Launcher, nodes: int) -> list[str]:
    """Return the command line of each node, without what is the same for all launchers."""
    endpoint = free_endpoint()
    if launcher is Launcher.TORCHRUN:
        meeting = [*meet_at(endpoint, str(nodes)), "--rdzv-id", "torch"]
        return torchrun(*(["--standalone"] if nodes == 1 else meeting))
    meeting = ["--nnodes", str(nodes), "--rdzv-endpoint", endpoint]
    preload = ["--preload", "torch"] if launcher is Launcher.PRELOAD else []
    return ["node-agent", *(["--standalone"] if nodes == 1 else meeting), *preload]


def _is_forked(pid: int) -> bool:
    # A fork has the memory of the forkserver, and with it what that was started with.
    try:
        return f"{FDS_ENV}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has just ended
        return False
