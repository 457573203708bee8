"""Writes the journal that a coordinator of this version leaves: `formats/N/journal.sqlite`.

It is kept for every released format, and every later version has to open it. Run it when the format
is raised, and once more before a release:

    python tests/support/journal/write_file.py
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rallypoint.client.errors import BarrierBroken
from rallypoint.client.sync import Client
from rallypoint.client.values import Scope
from rallypoint.server.journal.codec.batches import FORMAT
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import job_pb2
from support.journal.write_format import FORMATS
from support.processes.jobs import is_started
from support.processes.mailbox import Worker
from support.processes.world import NEW, World

FILE = "journal.sqlite"
DONE, RUNNING, CREATED = "done", "train", "later"
"""Jobs in it."""
FLAGS = ("--max-restarts=3",)


def write(folder: Path) -> None:
    """Run jobs, stop the coordinator, and copy its journal into the repository."""
    journal = folder / "state" / FILE
    with World(folder, "localhost:1") as world:
        coordinator = world.coordinator(0, f"--state=sqlite:{journal}", *NEW)
        _finish_job(world)
        _leave_job(world)
        coordinator.signal(signal.SIGTERM)
        assert coordinator.wait() == 0, coordinator.stderr()
    (FORMATS / str(FORMAT)).mkdir(exist_ok=True)
    shutil.copyfile(journal, FORMATS / str(FORMAT) / FILE)


def _start_worker(world: World) -> Worker:
    """Wait for the next worker that starts."""
    count = len(world.mailbox.started()) + 1
    world.mailbox.wait("started", count)
    return world.mailbox.started()[-1]


def _finish_job(world: World) -> None:
    """Run a job with a restart to its end."""
    world.job_id = DONE
    agent = world.agent("a", *FLAGS)
    _start_worker(world).tell("exit", "3")
    _start_worker(world).tell("exit", "0")
    assert agent.wait() == 0, agent.stderr()


def _leave_job(world: World) -> None:
    """Run a job that runs when the coordinator stops; leave something of everything."""
    world.job_id = RUNNING
    world.agent("b", *FLAGS)
    env = _start_worker(world).env
    world.jobs.wait(RUNNING, lambda job: is_started(job, 1))
    epoch = int(env["RALLYPOINT_EPOCH"])
    with Client(world.target, token=env["RALLYPOINT_WORKER_TOKEN"], epoch=epoch) as client:
        client.put_key(RUNNING, "step", b"7", scope=Scope.RUN)
        client.cordon_node(RUNNING, "c", reason="bad memory")
        client.create_job(CREATED, job_pb2.JobSpec(min_nodes=2, max_nodes=4))
        with suppress(BarrierBroken):  # no one else comes
            client.arrive(
                RUNNING,
                "epoch",
                barrier_pb2.Participant(name="left"),
                expected=barrier_pb2.Expected(count=2),
                timeout_s=0.1,
            )


def main() -> int:
    """Write the file; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
    print(f"wrote a journal of format {FORMAT} to {FORMATS / str(FORMAT) / FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
