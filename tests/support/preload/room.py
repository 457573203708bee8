"""A node whose workers are forked from a forkserver, and a partner that lets rounds begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.agent.helper.frames import FORKSERVER_FDS
from rallypoint.agent.preload.command import FDS_ENV
from support.processes.commands import Command
from support.processes.mailbox import Worker
from support.processes.world import OBEDIENT, World

NOTED = "imported.txt"
MODULE = f"""
import os
with open(os.path.join(os.path.dirname(__file__), "{NOTED}"), "a") as file:
    file.write(f"{{os.getpid()}} {{os.environ.get('PYTHONPATH')}}\\n")
"""


@dataclass
class Room:
    """A job of two nodes, a and b; a has a forkserver that imports the module `noted`."""

    world: World
    nproc: int = 2
    flags: tuple[str, ...] = ()
    partner_flags: tuple[str, ...] = ()
    script: Sequence[str] = (OBEDIENT,)
    env: Mapping[str, str] = field(default_factory=dict)
    text: str = MODULE
    preload: tuple[str, ...] = ("--preload=noted",)
    agent: Command = field(init=False)
    partners: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.module.write_text(self.text)
        self.agent = self.start("a", *self.preload, *self.flags)

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
        """The module that is preloaded."""
        return self.world.folder / "noted.py"

    def importers(self) -> dict[int, str]:
        """Return the processes that have imported it, with their PYTHONPATH."""
        path = self.world.folder / NOTED
        if not path.exists():
            return {}
        lines = (line.split(" ", 1) for line in path.read_text().splitlines())
        return {int(pid): rest for pid, rest in lines}

    def forkservers(self) -> list[int]:
        """Return the forkservers that live, by pid."""
        return [pid for pid in self.world.marked() if is_forkserver(pid)]

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

    def await_ready(self, count: int = 1) -> int:
        """Wait until a forkserver is ready for the `count`-th time; return its pid."""
        self.agent.wait_event("preloaded", count=count)
        (pid,) = self.forkservers()
        return pid

    def begin_forked_round(self) -> list[Worker]:
        """Let a round begin whose workers on node a are forked; return these, by rank."""
        workers = self.begin_round()
        assert all(is_forked(worker.pid) for worker in workers), self.agent.stderr()
        return workers


def is_forked(pid: int) -> bool:
    """Return whether a process is a forkserver or a fork of one."""
    try:
        environ = Path("/proc", str(pid), "environ").read_bytes()
    except OSError:  # gone
        return False
    return f"{FDS_ENV}=".encode() in environ


def is_forkserver(pid: int) -> bool:
    """Return whether a process is a forkserver: its forks have not its socket to the helper.

    A fork that has only begun has it still, and is a child of a forkserver.
    """
    socket = Path("/proc", str(pid), "fd", str(FORKSERVER_FDS[1]))
    try:
        return is_forked(pid) and socket.is_symlink() and not is_forked(parent_of(pid))
    except OSError:  # gone
        return False


def parent_of(pid: int) -> int:
    """Return the parent of a process: the helper, for a forkserver."""
    stat = Path("/proc", str(pid), "stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
