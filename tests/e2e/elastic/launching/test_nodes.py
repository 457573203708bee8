"""Jobs of several nodes that Python programs launch: places, failures, and changes of the job."""

from __future__ import annotations

import pytest

from rallypoint.client import Client
from rallypoint.v1 import node_pb2
from support.elastic.nodes import launch, result
from support.processes.world import World


@pytest.mark.long
def test_nodes_of_different_sizes_and_roles(world: World) -> None:
    """Ranks have no gap, roles are numbered by themselves, and each node returns its ranks."""
    sizes = {"a": (1, "reader"), "b": (2, "trainer"), "c": (3, "trainer")}
    nodes = [
        launch(world, "describe", name, name=name, nodes=(3, 3), nproc=size, role=role)
        for name, (size, role) in sizes.items()
    ]
    values = [result(node)["values"] for node in nodes]

    assert [1, 2, 3] == [len(found) for found in values]
    by_rank = {int(rank): value for found in values for rank, value in found.items()}
    assert list(range(6)) == sorted(by_rank)
    assert all(
        value["RANK"] == rank and value["WORLD_SIZE"] == 6 for rank, value in by_rank.items()
    )
    trainers = [value for value in by_rank.values() if value["args"] != ["a"]]
    assert {5} == {value["ROLE_WORLD_SIZE"] for value in trainers}
    assert list(range(5)) == sorted(value["ROLE_RANK"] for value in trainers)


def test_failure_for_good_is_known_on_every_node(world: World) -> None:
    """The node without a failure names the one that failed, by its global rank."""
    nodes = [launch(world, "refuse", "no data", name=name, nodes=(2, 2)) for name in "ab"]

    found = [result(node) for node in nodes]
    assert [1, 1] == [one["first"] for one in found]
    assert [["1"], ["1"]] == [list(one["failures"]) for one in found]
    assert all("no data" in str(one["failures"]["1"]) for one in found)


def test_success_here_waits_for_the_others(world: World) -> None:
    """A node whose workers have succeeded runs them again if another one fails."""
    nodes = [launch(world, name=name, nodes=(2, 2), max_restarts=1) for name in "ab"]
    first, second = world.mailbox.workers(2)
    first.tell("exit", "0")
    succeeded = node_pb2.NODE_STATE_SUCCEEDED
    world.jobs.wait(world.job_id, lambda job: any(one.state == succeeded for one in job.nodes))
    second.tell("exit", "3")
    for worker in world.mailbox.workers(2, round=2):
        worker.tell("exit", "0")

    assert all("values" in result(node) for node in nodes)


def test_job_is_cancelled(world: World) -> None:
    """An operator's cancellation is a closed rendezvous, with the reason."""
    node = launch(world)
    world.mailbox.workers(1)
    with Client(world.target) as client:
        client.cancel_job(world.job_id, reason="out of budget")

    found = result(node)
    assert found["raised"] == "RendezvousClosedError"
    assert "out of budget" in found["text"]


def test_too_few_nodes_in_time(world: World) -> None:
    """The error says how many nodes were missing."""
    found = result(launch(world, nodes=(2, 2), conf={"join_timeout": 1}))

    assert found["raised"] == "RendezvousTimeoutError"
    assert "only 1 node was ready after 1 s; 2 are required" in found["text"]


def test_coordinator_that_cannot_be_reached(world: World) -> None:
    """The error names the coordinator's absence after the timeout, not a bug."""
    port = world.ports.reserve()
    node = launch(
        world, conf={"coordinator_timeout": 1}, rdzv_endpoint=f"127.0.0.1:{port}", nodes=(2, 2)
    )

    found = result(node)
    assert found["raised"] == "RendezvousConnectionError"
    assert "no coordinator answered for 1 s" in found["text"]
