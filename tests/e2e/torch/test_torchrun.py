"""Real torchrun with `--rdzv-backend=rallypoint`: what only it does.

What it does as all launchers do is in launching/test_launchers.py.
"""

from __future__ import annotations

import signal
import textwrap

import pytest

from rallypoint.v1 import job_pb2
from support.processes.commands import Command
from support.processes.mailbox import Worker
from support.processes.world import World
from support.torchrun.plugin import torchrun

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


def test_spare_takes_the_place_of_a_lost_node(world: World) -> None:
    """A node is lost, the survivor restarts, and a spare comes in; another one is not needed."""
    nodes = {name: torchrun(world, name, nnodes="2") for name in "abcd"}
    first = world.mailbox.workers(2)
    lost = first[0].node
    for name in {*"abcd"} - {worker.node for worker in first}:
        nodes[name].wait_text("became_spare")
    nodes[lost].kill()
    world.kill(first[0].pid)
    second = world.mailbox.workers(2, round=2)
    exit_all(second)

    assert first[1].node in {worker.node for worker in second}
    assert lost not in {worker.node for worker in second}
    codes = {name: one.wait() for name, one in nodes.items()}
    assert codes == {**dict.fromkeys("abcd", 0), lost: -signal.SIGKILL}
    (spare,) = {*"abcd"} - {lost} - {worker.node for worker in second}
    said = nodes[spare].stderr()
    assert "node_not_needed" in said and "Traceback" not in said


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
