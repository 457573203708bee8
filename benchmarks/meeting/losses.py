"""How soon the survivors of a lost node run again under unmodified torchrun.

Three torchruns with one worker each; a round needs two of them. One is killed, with its worker, as
when a machine is lost. Measured is the time until the last worker of the round of two has started.

In the first kind of loss, nothing else happens: the survivors' workers wait, as in a collective
whose time has not run out. In the second kind they end in the same moment, as when connections
break, and torchrun restarts them.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum

from harness.fleet import MANY, Fleet, TorchrunFleet
from harness.trial import MeasurementFailed, Trial

NODES = 3
LIMIT_S = 45.0
"""How long the survivors may take. The shortest lease of c10d is two seconds here."""
SETTLE_S = 3.0
"""From the first round to the loss: every keep-alive has been sent."""
ATTEMPTS = 3
"""For a first round: one whose last call ends before the third node has joined may never grow."""
SHORT = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"
"""The quickest setting: a node counts as lost after two seconds without a keep-alive."""


class Loss(StrEnum):
    """What happens besides the loss of a node."""

    ALONE = "a node is lost; the other workers wait"
    WITH_FAILURES = "a node is lost; the other workers fail at once"


@dataclass(slots=True)
class Losses:
    """Repeats of one kind of loss with one back end, as seconds until the survivors run again."""

    loss: Loss
    backend: str
    samples: list[float] = field(default_factory=list)
    never: int = 0
    """Repeats in which nothing happened within the limit."""

    def text(self) -> str:
        """Return the cell of the table."""
        if not self.samples:
            return f"not in {self.never} of {self.never}"
        spread = f"({min(self.samples):.3f}-{max(self.samples):.3f})"
        never = f", not in {self.never}" if self.never else ""
        return f"{statistics.median(self.samples):.3f} s {spread}{never}"


class QuickTorchrunFleet(TorchrunFleet):
    """c10d in its quickest setting."""

    def command(self, name: str) -> list[str]:
        return [*super().command(name), "--rdzv-conf", SHORT]  # the last one counts


class PluginFleet(Fleet):
    """The same torchruns with our back end, and a coordinator."""

    def __init__(self, trial: Trial, size: int) -> None:
        super().__init__(trial, size)
        command = ["coordinator", "--host=127.0.0.1", "--port=0", "--log-level=error"]
        self.address = trial.read_address(trial.start(command, stdout=subprocess.PIPE))

    def command(self, name: str) -> list[str]:
        meeting = ["--rdzv-backend=rallypoint", f"--rdzv-endpoint={self.address}"]
        meeting += ["--rdzv-id=fleet", "--rdzv-conf=last_call_timeout=1"]
        nodes = ["--nnodes", f"{max(1, self.size - 1)}:{self.size}", "--nproc-per-node=1"]
        return ["torchrun", *nodes, *meeting, "--max-restarts", MANY, "--no-python"]


def lose(fleet: Fleet, loss: Loss) -> float | None:
    """Kill a node that hosts nothing; return when the others ran again, in s, or None."""
    victim = next(
        worker
        for worker, stamp in sorted(fleet.workers.items(), key=lambda each: -each[1].rank)
        if not isinstance(fleet, TorchrunFleet) or not fleet.holds_store(fleet.agent_of(worker))
    )
    others = fleet.workers.keys() - {victim}
    killed_ns = time.monotonic_ns()
    fleet.kill_agent(fleet.agent_of(victim))
    os.kill(victim, signal.SIGKILL)
    if loss is Loss.WITH_FAILURES:
        for worker in others:
            os.kill(worker, signal.SIGKILL)
    expected = others if loss is Loss.ALONE else ()
    after = fleet.observe(expected, NODES - 1, LIMIT_S)
    return (after.starts[-1] - killed_ns) / 1e9 if after.starts else None


def lose_once(backend: str, loss: Loss) -> float | None:
    """Start a job, lose a node; return when the others ran again, in s, or None."""
    for attempt in range(ATTEMPTS):
        with Trial() as trial:
            kind = PluginFleet if backend == "rallypoint" else QuickTorchrunFleet
            with closing(kind(trial, NODES)) as fleet:
                try:
                    fleet.start()
                except MeasurementFailed:
                    if attempt == ATTEMPTS - 1:
                        raise
                    continue
                time.sleep(SETTLE_S)
                return lose(fleet, loss)
    raise AssertionError("no attempt was made")
