"""Jobs of the Slurm cluster, as a user sees them: what sbatch says, their output, their state."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.processes.commands import SCRIPTS, Command
from support.processes.world import World
from support.slurm.cluster import Cluster

EXAMPLES = Path(__file__).parents[3] / "examples" / "slurm"
END_LIMIT_S = 200.0
POLL_S = 0.2


@dataclass(frozen=True)
class Job:
    """A submitted job."""

    cluster: Cluster
    id: str
    output: Command
    """Its lines, as they come."""

    def fields(self) -> dict[str, str]:
        """Return what `scontrol show job` says."""
        words = self.cluster.run("scontrol", "show", "job", self.id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def await_state(self, state: str) -> dict[str, str]:
        """Wait for a state such as COMPLETED; return the fields."""
        format_ = ("--noheader", "--format=%T", "--states=all", f"--jobs={self.id}")
        self.cluster.await_output(state, "squeue", *format_, limit_s=END_LIMIT_S)
        return self.fields()

    def await_requeued(self) -> None:
        """Wait until it was queued again and has started, or has ended a second time."""
        query = ("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={self.id}")
        end_s, was_pending = time.monotonic() + END_LIMIT_S, False
        while True:
            restarts, found = self.fields()["Restarts"], self.cluster.run(*query)
            was_pending |= restarts == "1" and found == "PENDING"
            # Slurm counts the restart first, and shows the end of the first life a moment longer.
            has_ended = was_pending and found in ("COMPLETED", "FAILED")
            if restarts == "1" and (found == "RUNNING" or has_ended):
                return
            assert time.monotonic() < end_s, f"{self.fields()}{self.cluster.logs()}"
            time.sleep(POLL_S)

    def cancel(self) -> None:
        """Cancel it, and wait until it has ended."""
        self.cluster.run("scancel", self.id)
        self.await_state("CANCELLED")


def submit(
    cluster: Cluster,
    world: World,
    script: str,
    *arguments: str,
    flags: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> Job:
    """Submit one of the example scripts from the folder of a test, as a user would."""
    if not (world.folder / script).exists():
        shutil.copytree(EXAMPLES, world.folder, dirs_exist_ok=True)
    path = f"{SCRIPTS}:{world.env()['PATH']}"
    environment = world.env({"PATH": path, **(env or {})})
    sbatch = ("sbatch", "--parsable", "--output=%j.log", *flags, script, *arguments)
    job_id = cluster.run(*sbatch, cwd=world.folder, env=environment)
    log = world.folder / f"{job_id}.log"
    log.touch()
    follow = ["tail", "--lines=+1", "--follow=name", "--sleep-interval=0.1", str(log)]
    return Job(cluster, job_id, world.start(f"job {job_id}", follow))
