"""Two hosts, each with another name, for jobs that bring their coordinator."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from rallypoint.v1 import job_pb2
from rallypoint.wire.last_runs import FOLDER
from support.hosted.lines import Line
from support.machines.netns import Network
from support.processes.commands import NODE_AGENT, Command, describe
from support.processes.jobs import Jobs, is_started
from support.processes.world import OBEDIENT, World

NAMES = ("node1", "node2")
PROMPT = {
    "PET_LAST_CALL": "1",
    "PET_SETTLE_TIME": "0",
    "PET_GROW_AFTER": "0",
    "PET_RESTART_BACKOFF": "0",
    "PET_LEASE": "15",
}
"""Policies that make a job wait. They are variables: the command lines are those of torchrun."""


NAME_SERVER = "127.0.0.53"
SILENT_SERVER = f"""
import socket, time
with socket.socket(type=socket.SOCK_DGRAM) as server:
    server.bind(("{NAME_SERVER}", 53))
    print("it listens", flush=True)
    time.sleep(600)
"""


class Pair:
    """The hosts node1 and node2; both know node1.example.com."""

    def __init__(self, network: Network, world: World) -> None:
        self.network = network
        self.world = world
        self._folders: list[Path] = []
        for name in NAMES:
            folder = Path("/etc/netns", network.hosts[name].namespace)
            folder.mkdir(parents=True)
            self._folders.append(folder)
            address = network.hosts["node1"].address
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} node1.example.com\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self._folders:
            shutil.rmtree(folder)

    def agent(self, rank: int, line: Line) -> Command:
        """Run a command line of torchrun on one of the hosts, with the word replaced."""
        words = [NODE_AGENT, *self._fill(line.flags, rank).split(), OBEDIENT]
        variables = dict(text.split("=", 1) for text in self._fill(line.variables, rank).split())
        return self.start(rank, words, {**PROMPT, **variables})

    def start(self, rank: int, words: Sequence[str], variables: Mapping[str, str]) -> Command:
        """Run a command on one of the hosts."""
        name = NAMES[rank]
        host = self.network.hosts[name]
        here = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name)
        return self.world.start(f"{words[0]} {name}", [*host.prefix(), *here, *words], variables)

    def write_hosts(self, rank: int, address: str) -> None:
        """Let node1.example.com have another address on one of the hosts."""
        text = f"127.0.0.1 localhost\n{address} node1.example.com node1\n"
        (self._folders[rank] / "hosts").write_text(text)

    def silence_names(self) -> None:
        """Give both hosts a name server that reads nothing, beside the files that they have."""
        for rank, folder in enumerate(self._folders):
            (folder / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\n")
            server = self.start(rank, [sys.executable, "-c", SILENT_SERVER], {})
            server.wait_stdout("it listens")

    def _fill(self, text: str, rank: int) -> str:
        values = {
            "$1": str(rank),
            "$HOST": "node1.example.com",
            "$ADDR": self.network.hosts["node1"].address,
            "$IS_HOST": "true" if rank == 0 else "false",
        }
        for name, value in values.items():
            text = text.replace(name, value)
        return text

    def follow(self, target: str) -> None:
        """Talk to the coordinator at `name:port` of the first host from now on."""
        port = target.rpartition(":")[2]
        self.world.jobs.channel.close()
        self.world.jobs = Jobs(f"{self.network.hosts['node1'].address}:{port}")

    def await_round(self, job_id: str, nodes: int, after: int = 0) -> job_pb2.Job:
        """Wait until all workers of a later round of so many nodes run."""

        def is_wanted(job: job_pb2.Job) -> bool:
            header = job.round.header
            is_it = header.number > after and header.group_world_size == nodes
            return is_it and is_started(job, header.number)

        return self.world.jobs.wait(job_id, is_wanted)

    def coordinators(self) -> list[int]:
        """Return the hosted coordinators that run."""
        return [pid for pid in self.world.marked() if " coordinator --host" in describe(pid)]

    def folders(self) -> list[str]:
        """Return what hosted coordinators have left in the state folder."""
        kept = self.world.folder / "state" / "rallypoint"
        return sorted(set(os.listdir(kept)) - {FOLDER}) if kept.exists() else []
