"""The batch scripts of examples/slurm on a real Slurm: nodes are lost, jobs drain and come back.

Their coordinators are started by the agents of the first node, as the scripts say.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from rallypoint.wire.last_runs import FOLDER
from support.processes.commands import SCRIPTS, Command
from support.processes.world import World
from support.slurm.cluster import NODES, Cluster, NotPermitted

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


# One cluster at a time, because Slurm names the control groups of its jobs by their numbers: so
# tests/conftest.py gives this file to one process.
pytestmark = pytest.mark.timeout(600)

MUCH = "--steps=100000"
"""Steps of a job that does not end by itself."""


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    try:
        cluster = Cluster(os.environ)
    except NotPermitted as why:
        pytest.skip(str(why))
    with cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """All nodes are idle before a test, whatever the one before it has done."""
    yield shared_cluster
    shared_cluster.run("scancel", "--user=root")
    for node in NODES:
        if not shared_cluster.is_on(node):
            shared_cluster.switch_on(node)
    shared_cluster.await_output("idle", "sinfo", "--noheader", "--format=%T")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, "localhost:1") as world:
        yield world


def finish(world: World, job: Job, state: str, code: str) -> None:
    """The job ends like this, and leaves no process and no journal."""
    fields = job.await_state(state)

    assert (fields["JobState"], fields["ExitCode"]) == (state, code)
    assert world.left(spared=[job.output.pid]) == []
    assert {path.name for path in (world.folder / "state" / "rallypoint").iterdir()} <= {FOLDER}


@pytest.mark.nightly
def test_fixed_job_runs(cluster: Cluster, world: World) -> None:
    """The agents start a coordinator on the first node, which ends with the job."""
    job = submit(cluster, world, "fixed.sbatch", "train.py", "--steps=30")
    job.output.wait_stdout("2 worker(s) start at step 0")

    finish(world, job, "COMPLETED", "0:0")
    assert sum("coordinator_started" in line for line in job.output.stdout().split("\n")) == 1


@pytest.mark.nightly
def test_lost_node_of_a_fixed_job(cluster: Cluster, world: World) -> None:
    """Slurm queues the whole job again, and it continues on other nodes."""
    job = submit(cluster, world, "fixed.sbatch", "train.py", "--steps=60")
    job.output.wait_stdout("saved step 20")
    cluster.switch_off("n2")
    job.await_requeued()
    job.output.wait_stdout_text("worker(s) start at step", 2)

    finish(world, job, "COMPLETED", "0:0")
    assert "2 worker(s) start at step 0" in job.output.stdout()
    assert job.fields()["NodeList"] == "n[1,3]"


@pytest.mark.long
def test_lost_node_of_an_elastic_job(cluster: Cluster, world: World) -> None:
    """The others continue without it, from the last checkpoint, and the job succeeds."""
    job = submit(cluster, world, "elastic.sbatch", "train.py", "--steps=60")
    job.output.wait_stdout("3 worker(s) start at step 0")
    job.output.wait_stdout("saved step 20")
    cluster.switch_off("n3")
    job.output.wait_stdout_text("2 worker(s) start at step")

    finish(world, job, "COMPLETED", "0:0")
    assert job.fields()["Restarts"] == "0"


@pytest.mark.nightly
def test_requeue_until_a_worker_forbids_it(cluster: Cluster, world: World) -> None:
    """Exit code 1 queues the job again; exit code 3 becomes 93, and the job stays failed."""
    program = ("--no-python", "bash", "-c", "exit $((SLURM_RESTART_COUNT == 1 ? 3 : 1))")
    flags = ("--restart-backoff=0", "--max-restarts=0")
    job = submit(cluster, world, "requeue.sbatch", *flags, *program)
    job.await_requeued()

    finish(world, job, "FAILED", "93:0")
    assert job.fields()["Restarts"] == "1"


@pytest.mark.nightly
@pytest.mark.parametrize("cause", ["preemption", "time limit"])
def test_drain_and_continue(cluster: Cluster, world: World, cause: str) -> None:
    """The workers save their work at once, and the job continues from there."""
    if not cluster.is_tracked:
        pytest.skip("no freezer cgroup of version 1 here: Slurm's signals reach workers too")
    is_limit = cause == "time limit"
    flags = ("--time=2", "--signal=TERM@60") if is_limit else ()
    job = submit(cluster, world, "drain.sbatch", "train.py", MUCH, flags=flags)
    job.output.wait_stdout("saved step 20")
    if not is_limit:
        urgent = ("sbatch", "--partition=urgent", "--nodes=3", "--output=/dev/null")
        cluster.run(*urgent, "--wrap=true")
    # The other rank may only see that its peer is gone, if its own notice comes later.
    job.output.wait_stdout_text("leaves at step")
    leaving = [line for line in job.output.stdout().split("\n") if "leaves at step" in line]
    job.await_requeued()
    steps = {line.split()[-1] for line in leaving}
    job.output.wait_stdout(f"2 worker(s) start at step {steps.pop()}")

    assert steps == set()
    job.cancel()
    assert world.left(spared=[job.output.pid]) == []


@pytest.mark.nightly
def test_scancel(cluster: Cluster, world: World) -> None:
    """Everything of the job ends, its coordinator too."""
    job = submit(cluster, world, "fixed.sbatch", "train.py", MUCH)
    job.output.wait_stdout("saved step 20")
    job.cancel()

    assert world.left(spared=[job.output.pid]) == []
