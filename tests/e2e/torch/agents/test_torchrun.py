"""torchrun itself, unmodified, with our back end: nothing but the package is installed."""

import signal
from importlib import metadata

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

from rallypoint.torch.rendezvous import NAME, create_handler
from support.processes.commands import Command
from support.processes.mailbox import Worker
from support.processes.world import OBEDIENT, World
from support.torchrun.plugin import torchrun


def start(world: World, name: str, nnodes: str) -> Command:
    """Start a node whose worker has its name as an argument."""
    return torchrun(world, name, nnodes=nnodes, script=(OBEDIENT, name))


def workers_of(world: World, count: int, already: int) -> list[Worker]:
    """Wait for so many more workers; return them by rank."""
    world.mailbox.wait("started", already + count)
    return sorted(world.mailbox.started()[already:], key=lambda worker: worker.rank)


@pytest.mark.long
def test_spare_takes_the_place_of_a_lost_node(world: World) -> None:
    """A node is lost, the survivor restarts, and a spare comes in; it ends well, as all do."""
    agents = {name: start(world, name, "2:2") for name in "abc"}
    first = workers_of(world, 2, 0)
    running = {worker.argv[0] for worker in first}
    (spare,) = {"a", "b", "c"} - running
    lost = first[0].argv[0]
    agents[lost].kill()
    first[0].kill()
    second = workers_of(world, 2, 2)

    assert {worker.argv[0] for worker in second} == {first[1].argv[0], spare}
    assert {worker.env["WORLD_SIZE"] for worker in second} == {"2"}
    for worker in second:
        worker.tell("exit", "0")
    codes = {name: agent.wait() for name, agent in agents.items()}
    assert codes == {**dict.fromkeys("abc", 0), lost: -signal.SIGKILL}


def test_old_torch_finds_the_back_end_by_its_logs_specs() -> None:
    """--logs-specs=rallypoint registers the back end, and changes nothing about the logs."""
    (door,) = metadata.entry_points(group="torchrun.logs_specs", name="rallypoint")

    assert door.load() is DefaultLogsSpecs
    assert rendezvous_handler_registry._registry[NAME] is create_handler
