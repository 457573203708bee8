"""torchrun and programs that launch from Python, with several coordinators."""

from __future__ import annotations

import sys

import pytest

from support.etcd.coordinators import Coordinators, until_job
from support.processes.jobs import is_started, pids
from support.processes.world import OBEDIENT, World
from support.torchrun.plugin import torchrun

pytestmark = pytest.mark.long
PROGRAM = """
import sys
from rallypoint.elastic import LaunchConfig, elastic_launch

if __name__ == "__main__":
    endpoint, job_id, *script = sys.argv[1:]
    config = LaunchConfig(
        min_nodes=2, max_nodes=2, nproc_per_node=1, run_id=job_id,
        rdzv_backend="rallypoint", rdzv_endpoint=endpoint,
        rdzv_configs={"last_call": 0, "settle_time": 0}, local_addr="127.0.0.1",
    )
    elastic_launch(config, sys.executable)(*script)
"""


@pytest.mark.parametrize("launcher", ["torchrun", "elastic_launch"])
def test_job_continues_without_its_owner(world: World, on_one: Coordinators, launcher: str) -> None:
    """The owner is killed; the round stays, and the other coordinators learn how it ends."""
    on_one.start_many(3)
    if launcher == "torchrun":
        nodes = [torchrun(world, name, nnodes="2") for name in ("a", "b")]
    else:
        argv = [sys.executable, "-c", PROGRAM, world.target, world.job_id, OBEDIENT]
        nodes = [world.start(name, argv) for name in ("a", "b")]
    workers = world.mailbox.workers(2)
    before = until_job(on_one.seats[0], world.job_id, lambda job: is_started(job, 1))
    for worker in workers:
        given = worker.env["RALLYPOINT_COORDINATOR"].split(",")
        assert sorted(seat.address for seat in on_one.seats) == sorted(given)

    on_one.owner().command.kill()
    other = on_one.running()[0]
    after = until_job(other, world.job_id, lambda job: all(node.attached for node in job.nodes))
    assert (before.round.header, pids(before)) == (after.round.header, pids(after))
    for worker in workers:
        worker.tell("exit", "0")
    assert [0, 0] == [node.wait() for node in nodes]
