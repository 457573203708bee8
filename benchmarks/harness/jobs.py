"""A job whose workers import torch, under each launcher: its commands, its memory."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path

from harness.quickest import FT_LAUNCHER, NVRX, meet_at, torchrun
from harness.trial import (
    MeasurementFailed,
    Process,
    Trial,
    await_listening,
    free_endpoint,
    list_tree,
    measure_memory,
)
from rallypoint.agent.preload.command import FDS_ENV

RESTARTS = ("--max-restarts", "100")
"""More than any benchmark needs."""
HASTE = ("--restart-backoff", "0", "--crash-loop", "0", "--quarantine-after", "0")
"""Ours without its policies for repeated failures, which torchrun does not have."""


class Launcher(StrEnum):
    TORCHRUN = "torchrun, quickest settings"
    NVRX = "NVRx's ft_launcher, quickest settings"
    COLD = "Rallypoint"
    PRELOAD = "Rallypoint, `--preload torch`"


def find_launchers() -> list[Launcher]:
    """Return those that are installed: NVRx is `pip install nvidia-resiliency-ext`."""
    return [one for one in Launcher if one is not Launcher.NVRX or FT_LAUNCHER.exists()]


class Job:
    """Nodes of this machine that meet at the first: it hosts the coordinator, or the store."""

    def __init__(
        self,
        trial: Trial,
        launcher: Launcher,
        script: Sequence[str],
        *,
        nodes: int,
        workers: int,
        spares: int = 0,
        in_haste: bool = False,
    ) -> None:
        """Start all nodes.

        Args:
            trial: owns the processes.
            launcher: which one; ours has its default policies.
            script: the workers' script with its arguments.
            nodes: how many.
            workers: of each node.
            spares: nodes that the job does not need.
            in_haste: failures of the same job count as if each were the first.
        """
        self.launcher = launcher
        endpoint = free_endpoint()
        command = _find_command(launcher, nodes, endpoint)
        command += ["--nproc-per-node", str(workers), *RESTARTS]
        if in_haste and launcher in (Launcher.COLD, Launcher.PRELOAD):
            command += HASTE
        self.began_ns = time.monotonic_ns()
        """CLOCK_MONOTONIC just before the first command."""
        self.agents: list[Process] = [trial.start([*command, *script])]
        if spares:  # else any of torchrun's nodes may host the store
            await_listening(endpoint)
        self.agents += [trial.start([*command, *script]) for _ in range(nodes + spares - 1)]

    @property
    def ends(self) -> list[int]:
        """Pidfds, each readable when its agent has ended."""
        return [agent.pidfd for agent in self.agents]

    def find_agent(self, worker: int) -> Process:
        """Return the agent of a worker.

        Raises:
            MeasurementFailed: it has none, or has ended.
        """
        for agent in self.agents:
            if worker in list_tree(agent.popen.pid):
                return agent
        raise MeasurementFailed(f"process {worker} belongs to no node")

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


def _find_command(launcher: Launcher, nodes: int, endpoint: str) -> list[str]:
    """Return the command line of each node, without what is the same for all launchers."""
    if launcher in (Launcher.TORCHRUN, Launcher.NVRX):
        meeting = [*meet_at(endpoint, str(nodes)), "--rdzv-id", "torch"]
        flags = ["--standalone"] if nodes == 1 else meeting
        return torchrun(*flags) if launcher is Launcher.TORCHRUN else [*NVRX, *flags]
    meeting = ["--nnodes", str(nodes), "--rdzv-endpoint", endpoint]
    preload = ["--preload", "torch"] if launcher is Launcher.PRELOAD else []
    return ["node-agent", *(["--standalone"] if nodes == 1 else meeting), *preload]


def _is_forked(pid: int) -> bool:
    # A fork has the memory of the forkserver, and with it what that was started with.
    try:
        return f"{FDS_ENV}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has just ended
        return False
