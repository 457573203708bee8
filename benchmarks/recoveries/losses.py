"""Kills workers and agents again and again, and says how long training takes to come back."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from harness.fleet import is_listening
from harness.trial import MeasurementFailed, Process, Trial, list_tree, read_parent_and_start
from recoveries.launchers import Crew, Launcher
from recoveries.marks import Marks, Moments
from recoveries.timeline import Round, read_rounds

NODES = 2
START_LIMIT_S = 120.0
"""Longest wait for the first world."""
BACK_LIMIT_S = 90.0
"""Longest wait for a world after a failure."""
FAILURES_MAX = 2
"""After so many losses that a launcher has not survived it is not tried any more."""


class Loss(StrEnum):
    WORKER = "worker"
    AGENT = "agent"


@dataclass
class Series:
    """What was measured for one launcher and one kind of loss.

    main_s, reduced_s: from the signal until the last worker was in its main program with torch
        imported, and until the last one had done an all-reduce.
    warm: how many workers of each world had been standbys; ours only.
    rounds: what the coordinator says about the rounds after the failures; ours only.
    hung: after how many losses all workers ran but their process group never formed.
    failures: why a measurement did not come to its end.
    """

    launcher: Launcher
    loss: Loss
    main_s: list[float] = field(default_factory=list)
    reduced_s: list[float] = field(default_factory=list)
    warm: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    hung: int = 0
    failures: list[str] = field(default_factory=list)


def measure(series: Series, repeats: int, workers: int, nvidia: Path, pause_s: float) -> None:
    """Start a job, repeat the loss, and end the job; note what was measured.

    Args:
        series: names the launcher and the loss.
        repeats: how often.
        workers: of each node.
        nvidia: the Python of the environment with NVIDIA's launcher.
        pause_s: how long a world runs before it is harmed.
    """
    wanted = len(series.main_s) + repeats
    while len(series.main_s) < wanted and len(series.failures) < FAILURES_MAX:
        try:
            _measure(series, wanted - len(series.main_s), workers, nvidia, pause_s)
        except MeasurementFailed as error:
            where = f"{series.launcher}, {series.loss}"
            print(f"{where}: {error}", *getattr(error, "__notes__", ()), file=sys.stderr)
            series.failures.append(str(error))


def _measure(series: Series, repeats: int, workers: int, nvidia: Path, pause_s: float) -> None:
    with Trial() as trial:
        marks = Marks(trial.folder)
        crew = Crew(trial, series.launcher, marks.command, workers, nvidia)
        for _ in range(NODES):
            crew.add()
        world = marks.await_world(NODES * workers, (), START_LIMIT_S, _ends(crew))
        if series.loss is Loss.AGENT:
            crew.add()  # the spare
        seen: set[int] = set(world.pids)
        for _ in range(repeats):
            crew.await_ready()
            time.sleep(pause_s)
            killed_ns = _harm(crew, series.loss, world)
            world = marks.await_world(NODES * workers, seen, BACK_LIMIT_S, _ends(crew))
            seen.update(world.pids)
            series.main_s.append((world.main_ns - killed_ns) / 1e9)
            text = f"main {series.main_s[-1]:.3f} s"
            if world.reduced_ns is not None:
                series.reduced_s.append((world.reduced_ns - killed_ns) / 1e9)
                text += f", all-reduce {series.reduced_s[-1]:.3f} s"
            print(f"{series.launcher}, {series.loss}: {text}", file=sys.stderr)
            _note(series, crew)
            if world.reduced_ns is None:  # the job hangs: start another one
                series.hung += 1
                break
            if series.loss is Loss.AGENT:
                crew.add()
        if crew.is_ours:
            series.rounds += read_rounds(crew.address, crew.job_id)
        marks.close()


def _note(series: Series, crew: Crew) -> None:
    if not crew.is_ours:
        return
    if crew.launcher is Launcher.WARM:
        series.warm.append(crew.count_warm())


def _harm(crew: Crew, loss: Loss, world: Moments) -> int:
    """Kill; return when, in ns of CLOCK_MONOTONIC."""
    if loss is Loss.WORKER:
        victim = world.pids[-1]
        killed_ns = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        return killed_ns
    agent = _find_agent(crew, world)
    below = list_tree(agent.popen.pid).keys() - {agent.popen.pid}
    killed_ns = time.monotonic_ns()
    agent.popen.kill()
    for pid in below:  # as if the machine were lost: not every launcher ends its workers
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    crew.lose(agent)
    return killed_ns


def _find_agent(crew: Crew, world: Moments) -> Process:
    """Return an agent whose workers are in the world; not the one with the store of torchrun."""
    port = int(crew.address.rpartition(":")[2])
    for agent in reversed(crew.agents):
        if not crew.is_ours and is_listening(agent.popen.pid, port):
            continue
        if any(_is_below(pid, agent.popen.pid) for pid in world.pids):
            return agent
    raise MeasurementFailed("no agent can be killed")


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        try:
            pid = read_parent_and_start(pid)[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
    return pid == ancestor


def _ends(crew: Crew) -> Sequence[int]:
    return [agent.pidfd for agent in crew.agents]
