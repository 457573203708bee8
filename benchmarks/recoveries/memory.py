"""What standbys and the agent with its helpers use: PSS, for several numbers of workers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from harness.trial import MeasurementFailed, Trial, list_tree
from rallypoint.agent.warm.command import FD_ENV
from recoveries.launchers import Launcher, Node
from recoveries.marks import Marks

START_LIMIT_S = 180.0
"""Longest wait for the workers; eight import torch at once."""


@dataclass(frozen=True, slots=True)
class Memory:
    """PSS in MB (1,000,000 bytes): a page that n processes share counts as 1/n of a page for each.

    with_standbys_mb: of workers and standbys together, once all are there.
    without_mb: of the workers, without standbys.
    """

    workers: int
    standbys_mb: float
    agent_mb: float
    with_standbys_mb: float
    without_mb: float


def measure(workers: int) -> Memory:
    """Start a node that has standbys, and one that has none.

    Raises:
        MeasurementFailed: its workers or its standbys did not come.
    """
    standbys_mb, agent_mb, with_mb = _measure_node(workers, Launcher.WARM)
    _, _, without_mb = _measure_node(workers, Launcher.COLD)
    found = Memory(workers, standbys_mb, agent_mb, with_mb, without_mb)
    print(f"memory, {workers} workers: {standbys_mb:.0f} MB of standbys", file=sys.stderr)
    return found


def _measure_node(workers: int, launcher: Launcher) -> tuple[float, float, float]:
    with Trial() as trial:
        marks = Marks(trial.folder)
        node = Node(trial, launcher, marks.command, workers)
        world = marks.await_world(workers, (), START_LIMIT_S, [node.agent.pidfd])
        node.await_ready()
        standbys = find_standbys(node.agent.popen.pid, world.pids)
        if launcher is Launcher.WARM and len(standbys) != workers:
            raise MeasurementFailed(f"{len(standbys)} standbys for {workers} workers")
        own = list_tree(node.agent.popen.pid).keys() - {*standbys, *world.pids}
        marks.close()
        return _pss_mb(standbys), _pss_mb([*own]), _pss_mb([*standbys, *world.pids])


def find_standbys(agent: int, workers: tuple[int, ...]) -> list[int]:
    """Return the standbys of an agent, also those that import."""
    tree = list_tree(agent).keys() - set(workers)
    return sorted(pid for pid in tree if pid != agent and _is_standby(pid))


def _is_standby(pid: int) -> bool:
    try:
        return f"{FD_ENV}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has just ended
        return False


def _pss_mb(pids: list[int]) -> float:
    kibibytes = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                kibibytes += int(line.split()[1])
    return kibibytes * 1024 / 1e6
