"""A disk that fails under a running job: the coordinator ends, the workers do not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from rallypoint.v1 import job_pb2
from rallypoint.v1 import node_service_pb2 as service_pb2
from rallypoint.v1 import node_service_pb2_grpc as service_grpc
from support.processes.feed import LIMIT_S
from support.processes.jobs import is_started, node
from support.processes.world import NEW, World


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a disk needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room on the disk; return the file that takes it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while file.write(b"x" * 4096):
            pass
    return filler


def cordon(world: World, name: str) -> None:
    service_grpc.NodeServiceStub(world.jobs.channel).CordonNode(
        service_pb2.CordonNodeRequest(job_id=world.job_id, node_name=name, reason="test"),
        timeout=LIMIT_S,
    )


@pytest.mark.long
def test_disk_fills_while_a_job_runs(world: World, disk: Path) -> None:
    """The coordinator ends with one line and nothing is decided; with room, the job continues."""
    port = world.ports.reserve()
    flags = (f"--state=sqlite:{disk / 'journal.sqlite'}", *NEW)
    first = world.coordinator(port, *flags)
    agents = [world.agent(name, "--max-restarts=3", nnodes="2", nproc=2) for name in ("a", "b")]
    workers = world.mailbox.workers(4)
    before = world.jobs.wait(world.job_id, lambda job: is_started(job, 1))

    filler = fill(disk)
    with pytest.raises(grpc.RpcError) as refused:
        cordon(world, "a")
    assert grpc.StatusCode.UNAVAILABLE == refused.value.code()
    assert 1 == first.wait()
    [line] = first.said()
    assert line.startswith(f"coordinator: error: {disk}")
    assert line.endswith("the disk is full; free some space, then start again")

    filler.unlink()
    world.coordinator(port, *flags)
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    after = world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    assert job_pb2.JOB_PHASE_RUNNING == after.phase
    assert before.round.header == after.round.header
    assert (0, 4) == (after.restart_count, len(world.mailbox.started()))
    assert not node(after, "a").health.cordoned, "no one was shown that"
    cordon(world, "a")
    for worker in workers:
        worker.tell("exit", "0")
    assert [0, 0] == [agent.wait() for agent in agents]
