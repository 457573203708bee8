"""The workers of a round, which share what the test says, and clients beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rallypoint.client import Client
from support.processes.commands import Command
from support.processes.mailbox import Worker
from support.processes.world import WORKERS, World

SHARING = (str(WORKERS / "sharing.py"),)


def start(
    world: World, *flags: str, nnodes: str = "2", nproc: int = 2
) -> tuple[list[Command], list[Worker]]:
    """Start two nodes of workers, with ranks in the order of the list."""
    agents = [
        world.agent(name, *flags, nnodes=nnodes, nproc=nproc, script=SHARING) for name in ("a", "b")
    ]
    return agents, world.mailbox.workers(2 * nproc)


class Room:
    """The workers of a round, and how many commands each has answered."""

    def __init__(self, world: World, workers: Sequence[Worker]) -> None:
        self.world = world
        self.workers = workers
        self._told: dict[int, int] = dict.fromkeys((one.pid for one in workers), 0)

    def tell(self, *words: str, ranks: Sequence[int] | None = None) -> None:
        for one in self._of(ranks):
            self._told[one.pid] += 1
            one.tell(*words)

    def answers(self, ranks: Sequence[int] | None = None) -> list[Any]:
        """Wait for the answers to the latest command, by rank: results, or names of errors."""
        fields = self.fields(ranks)
        return [one.get("error") or one["result"] for one in fields]

    def fields(self, ranks: Sequence[int] | None = None) -> list[dict[str, Any]]:
        mailbox = self.world.mailbox
        return [
            mailbox.wait("done", self._told[one.pid], pid=one.pid)[-1].fields
            for one in self._of(ranks)
        ]

    def ask(self, *words: str, ranks: Sequence[int] | None = None) -> list[Any]:
        self.tell(*words, ranks=ranks)
        return self.answers(ranks)

    def _of(self, ranks: Sequence[int] | None) -> list[Worker]:
        return [one for one in self.workers if ranks is None or one.rank in ranks]


def client_of(world: World, worker: Worker | None = None, target: str = "") -> Client:
    """Return a client like that of a worker, or that of an operator."""
    token, epoch = "", 0
    if worker is not None:
        token = worker.env["RALLYPOINT_WORKER_TOKEN"]
        epoch = int(worker.env["RALLYPOINT_EPOCH"])
    return Client(target or world.target, token=token, epoch=epoch)


def wait_arrived(world: World, name: str, count: int) -> None:
    """Wait until so many have arrived at a barrier."""
    with client_of(world) as client:
        while not any(
            (one.name, one.arrived_count) == (name, count)
            for one in client.list_barriers(world.job_id)
        ):
            pass  # each look is a call, which takes longer than an arrival
