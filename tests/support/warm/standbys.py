"""A node whose interpreters wait for rounds, and a partner that lets rounds begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.agent.warm.command import FD_ENV
from support.processes.commands import Command
from support.processes.mailbox import Worker
from support.processes.world import OBEDIENT, World

TRIES = 10
"""Rounds until one is warm. On a machine that is busy enough, standbys do not answer in time."""
NOTED = "imported.txt"
MODULE = f"""
import os
with open(os.path.join(os.path.dirname(__file__), "{NOTED}"), "a") as file:
    file.write(f"{{os.getpid()}} {{os.environ.get('PYTHONPATH')}}\\n")
"""


@dataclass
class Room:
    """A job of two nodes, a and b; a has standbys that import the module `noted`."""

    world: World
    nproc: int = 2
    flags: tuple[str, ...] = ()
    partner_flags: tuple[str, ...] = ()
    script: Sequence[str] = (OBEDIENT,)
    env: Mapping[str, str] = field(default_factory=dict)
    text: str = MODULE
    warm: tuple[str, ...] = ("--warm=noted",)
    agent: Command = field(init=False)
    partners: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.module.write_text(self.text)
        self.agent = self.start("a", *self.warm, *self.flags)

    def start(self, name: str, *flags: str) -> Command:
        """Start a node of the job."""
        return self.world.agent(
            name,
            "--max-restarts=50",
            "--max-reformations=50",
            *flags,
            nnodes="2",
            nproc=self.nproc,
            script=self.script,
            env={"PYTHONPATH": str(self.world.folder), "OMP_NUM_THREADS": "1", **self.env},
        )

    @property
    def module(self) -> Path:
        """The module that standbys import."""
        return self.world.folder / "noted.py"

    def importers(self) -> dict[int, str]:
        """Return the processes that have imported it, with their PYTHONPATH."""
        path = self.world.folder / NOTED
        if not path.exists():
            return {}
        lines = (line.split(" ", 1) for line in path.read_text().splitlines())
        return {int(pid): rest for pid, rest in lines}

    def standbys(self) -> list[int]:
        """Return the standbys that live, by pid."""
        return [pid for pid in self.world.marked() if is_standby(pid)]

    def begin_round(self) -> list[Worker]:
        """Let a round begin; return the workers of node a, by rank."""
        before = len(self.world.mailbox.started())
        self.partners.append(self.start(f"b{len(self.partners)}", *self.partner_flags))
        return self.await_workers(before)

    def await_workers(self, before: int) -> list[Worker]:
        """Wait for the workers of a round, after so many others; return those of node a."""
        self.world.mailbox.wait("started", before + 2 * self.nproc)
        fresh = self.world.mailbox.started()[before:]
        return sorted((one for one in fresh if one.node == "a"), key=lambda one: one.rank)

    def end_round(self) -> None:
        """Let the partner disappear, so that the node waits again."""
        self.partners[-1].kill()

    def await_ready(self, count: int) -> list[int]:
        """Wait until standbys are ready for the `count`-th time; return their pids."""
        self.agent.wait_event("standbys_ready", count=count)
        return self.standbys()

    def begin_warm_round(self) -> list[Worker]:
        """Let rounds begin until all workers of node a were standbys; return these."""
        for count in range(1, TRIES + 1):
            standbys = self.await_ready(count)
            workers = self.begin_round()
            started = self.agent.wait_event("warm_started", count=count)
            if started["workers"] == self.nproc:
                assert [one.pid for one in workers] == standbys
                return workers
            self.end_round()
        raise AssertionError(self.agent.stderr())


def is_standby(pid: int) -> bool:
    """Return whether a process was started as a standby; a worker may have been one."""
    try:
        environ = Path("/proc", str(pid), "environ").read_bytes()
        command = Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:  # gone
        return False
    return f"{FD_ENV}=".encode() in environ and b"\0-c\0" not in command


def parent_of(pid: int) -> int:
    """Return the parent of a process: the helper, for a standby."""
    stat = Path("/proc", str(pid), "stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
