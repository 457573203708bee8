"""Nodes of different kinds in one job, and handlers without an agent."""

from __future__ import annotations

from rallypoint.elastic import RendezvousParameters, get_rendezvous_handler
from support.elastic.nodes import PROMPT, launch, result
from support.processes.world import World


def test_node_agent_and_python_in_one_job(world: World) -> None:
    """A node of the command line and one of a program form one round."""
    agent = world.agent("a", nnodes="2", nproc=2)
    node = launch(world, name="b", nodes=(2, 2), role="default")
    for worker in world.mailbox.workers(3):
        worker.tell("exit", "0")

    assert len(result(node)["values"]) == 1
    assert agent.wait() == 0


def test_node_with_another_specification(world: World) -> None:
    """The refusal names what differs."""
    first = launch(world, name="a", nodes=(2, 2))
    first.wait_text("coordinator_reached")
    found = result(launch(world, name="b", nodes=(2, 2), max_restarts=7))

    assert found["raised"] == "RendezvousStateError"
    assert "--max-restarts is 0 there and 7 here" in found["text"]


def test_handler_without_an_agent(world: World) -> None:
    """A program that only asks for the next round is a node with one worker."""
    handlers = [
        get_rendezvous_handler(
            RendezvousParameters(
                "c10d", world.target, world.job_id, 1, 2, "127.0.0.1", node_name=name, **PROMPT
            )
        )
        for name in "ab"
    ]
    alone = handlers[0].next_rendezvous()
    alone.store.set("key", "value")

    assert (alone.rank, alone.world_size) == (0, 1)
    assert alone.bootstrap_store_info.master_addr == "127.0.0.1"
    assert (alone.store.get("key"), alone.store.check(["key", "other"])) == (b"value", False)
    assert (handlers[0].num_nodes_waiting(), handlers[0].is_closed()) == (0, False)
    assert all(handler.shutdown() for handler in handlers)


def test_closing_ends_the_job_everywhere(world: World) -> None:
    """`set_closed` stops the workers of all nodes: their rendezvous is closed."""
    node = launch(world)
    world.mailbox.workers(1)
    parameters = RendezvousParameters("rallypoint", world.target, world.job_id, 1, 1)
    get_rendezvous_handler(parameters).set_closed()

    found = result(node)
    assert found["raised"] == "RendezvousClosedError"
    assert "the rendezvous was closed" in found["text"]
    assert world.left() == []
