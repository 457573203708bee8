"""Real torchrun with `--rdzv-backend=rallypoint`: one node and two, and what may go wrong."""

from __future__ import annotations

import signal
import textwrap

import pytest

from rallypoint.v1 import job_pb2, node_pb2
from support.processes.commands import Command
from support.processes.jobs import is_started, node
from support.processes.mailbox import Worker
from support.processes.world import NEW, World
from support.torchrun.plugin import SOON, torchrun

pytestmark = pytest.mark.long  # torchrun imports torch, which takes seconds


def start_two(world: World, *flags: str, nnodes: str = "2") -> tuple[list[Command], list[Worker]]:
    """Start two nodes with one worker each; return them by rank."""
    nodes = [torchrun(world, name, *flags, nnodes=nnodes) for name in ("a", "b")]
    workers = world.mailbox.workers(2)
    if workers[0].node == "b":
        nodes.reverse()
    return nodes, workers


def exit_all(workers: list[Worker]) -> None:
    for worker in workers:
        worker.tell("exit", "0")


@pytest.mark.nightly
def test_one_node(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers get torch's variables, and ours; the coordinator knows the outcome."""
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)  # of a command that ran in this process
    launcher = torchrun(world, "a", nproc=2)
    workers = world.mailbox.workers(2)
    exit_all(workers)

    assert launcher.wait() == 0
    env = workers[1].env
    assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"]) == ("1", "2", "127.0.0.1")
    assert env["TORCHELASTIC_RUN_ID"] == env["RALLYPOINT_JOB_ID"] == world.job_id
    assert env["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert "GRPC_VERBOSITY" not in env
    assert world.jobs.get(world.job_id).outcome == job_pb2.OUTCOME_SUCCEEDED
    assert "Traceback" not in launcher.stderr()


@pytest.mark.nightly
def test_two_nodes(world: World) -> None:
    """Both form one round; the coordinator shows them while they run."""
    nodes, workers = start_two(world)
    job = world.jobs.wait(world.job_id, lambda job: is_started(job, 1))
    exit_all(workers)

    assert [one.wait() for one in nodes] == [0, 0]
    assert {one.name for one in job.nodes} == {"a", "b"}
    assert {one.local_world_size for one in job.nodes} == {1}
    assert [worker.env["WORLD_SIZE"] for worker in workers] == ["2", "2"]
    assert world.jobs.get(world.job_id).outcome == job_pb2.OUTCOME_SUCCEEDED


@pytest.mark.nightly
def test_node_that_waits(world: World) -> None:
    """Its log and the coordinator say what it waits for; SIGTERM ends it at once."""
    launcher = torchrun(world, "a", nnodes="2")
    launcher.wait_text("1 of 2 required nodes are ready")
    job = world.jobs.get(world.job_id)
    launcher.signal(signal.SIGTERM)

    assert launcher.wait() == -signal.SIGTERM
    assert node(job, "a").state == node_pb2.NODE_STATE_READY
    assert "1 of 2 required nodes are ready" in job.waiting.text


def test_worker_failure(world: World) -> None:
    """torchrun restarts the workers of both nodes; ranks stay, and the store's port is new."""
    nodes, workers = start_two(world, "--max-restarts=1")
    workers[1].tell("exit", "3")
    again = world.mailbox.workers(2, round=2)
    exit_all(again)

    assert [one.wait() for one in nodes] == [0, 0]
    assert [worker.node for worker in again] == [worker.node for worker in workers]
    assert again[0].env["MASTER_PORT"] != workers[0].env["MASTER_PORT"]
    nodes[0].wait_text("torchrun restarts its workers after a failure")


def test_failure_for_good(world: World) -> None:
    """The other node ends too, although its workers are fine, and says whose fault it was."""
    nodes, workers = start_two(world, "--max-restarts=0")
    workers[1].tell("exit", "7")

    assert [one.wait(60) for one in nodes] == [1, 1]
    assert "RendezvousClosedError: job" in nodes[0].stderr()
    assert f"on node {workers[1].node} failed first: exit code 7" in nodes[0].stderr()
    assert world.jobs.get(world.job_id).outcome == job_pb2.OUTCOME_FAILED


def test_lost_node_of_rank_0(world: World) -> None:
    """The survivor restarts without it, at once and with its own address and a new port."""
    nodes, workers = start_two(world, nnodes="1:2")
    nodes[0].kill()
    world.kill(workers[0].pid)  # a torchrun that is killed leaves its workers behind
    (again,) = world.mailbox.workers(1, round=2)
    exit_all([again])

    assert nodes[1].wait() == 0
    assert nodes[1].stderr().count(f"node {workers[0].node} was lost") >= 1
    assert (again.rank, again.env["WORLD_SIZE"]) == (0, "1")
    assert again.env["MASTER_PORT"] != workers[0].env["MASTER_PORT"]
    assert again.restart_count == 0, "a restart that torchrun does not count"


@pytest.mark.nightly
def test_node_that_gets_a_signal(world: World) -> None:
    """It leaves; the other one restarts without it."""
    nodes, workers = start_two(world, nnodes="1:2")
    nodes[0].signal(signal.SIGTERM)
    (again,) = world.mailbox.workers(1, round=2)
    exit_all([again])

    assert nodes[0].wait() == 1
    assert nodes[1].wait() == 0
    assert f"node {workers[0].node} left" in nodes[1].stderr()


@pytest.mark.nightly
def test_growth(world: World) -> None:
    """A second node joins a running job; a third one is a spare that exits with 0."""
    first = torchrun(world, "a", nnodes="1:2", conf=SOON.replace("=20", "=0"))
    world.mailbox.workers(1)
    second = torchrun(world, "b", nnodes="1:2", conf=SOON.replace("=20", "=0"))
    workers = world.mailbox.workers(2, round=2)
    spare = torchrun(world, "c", nnodes="1:2", conf=SOON.replace("=20", "=0"))
    spare.wait_text("became_spare")
    exit_all(workers)

    assert [one.wait() for one in (first, second, spare)] == [0, 0, 0]
    assert [worker.node for worker in workers] == ["a", "b"]
    assert "node_not_needed" in spare.stderr() and "Traceback" not in spare.stderr()


@pytest.mark.usefixtures("forgetful")
def test_coordinator_that_is_killed(world: World) -> None:
    """A new one takes the round over; no worker notices."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    nodes, workers = start_two(world)
    coordinator.kill()
    for one in nodes:
        one.wait_text("coordinator_not_reached")
    world.coordinator(port)
    for one in nodes:
        one.wait_text("round_continued")
    exit_all(workers)

    assert [one.wait() for one in nodes] == [0, 0]
    assert len(world.mailbox.started()) == 2
    assert world.jobs.get(world.job_id).outcome == job_pb2.OUTCOME_SUCCEEDED


TRAINING = """
    import os
    import torch
    import torch.distributed as dist
    from rallypoint.torch import Store

    dist.init_process_group("gloo")
    one = torch.ones(1)
    dist.all_reduce(one)
    store = Store.from_environment()
    store.set(os.environ["RANK"], "came")
    store.wait(["0", "1"])
    print("sum", one.item(), flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""


def test_training(world: World) -> None:
    """gloo finds the TCPStore of the launchers, and workers may use our store as well."""
    script = world.folder / "train.py"
    script.write_text(textwrap.dedent(TRAINING))
    nodes = [torchrun(world, name, nnodes="2", script=(str(script),)) for name in ("a", "b")]

    assert [one.wait(120) for one in nodes] == [0, 0]
    assert [one.stdout() for one in nodes] == ["sum 2.0", "sum 2.0"]
