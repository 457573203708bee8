"""One test's world of real processes: coordinators, agents, their workers, and the end of them all.

Every process that a test causes carries a mark in its environment. When the test is over its agents
and coordinators are killed with SIGKILL; whatever still carries the mark after a moment was left
behind, which fails the test.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from rallypoint.agent.machine.ports import PortReserver
from support.processes.commands import (
    COORDINATOR,
    NODE_AGENT,
    Command,
    await_none_marked,
    describe,
    find_marked,
    kill,
    with_prose,
)
from support.processes.feed import LIMIT_S
from support.processes.jobs import Jobs
from support.processes.mailbox import MAILBOX_ENV, Mailbox
from support.tries.commit import draw

MARK_ENV = "RALLYPOINT_E2E"
WORKERS = Path(__file__).parents[2] / "e2e" / "workers"
OBEDIENT = str(WORKERS / "obedient.py")
PROMPT = ("--last-call=0", "--settle-time=0", "--grow-after=0", "--restart-backoff=0")
"""Policies that make a job wait, turned off: a test that is about one turns it on again."""
NEW = ("--startup-window=0.1",)
"""For a coordinator that has no agents to come back: it need not wait for them."""
PATIENCE = ("--lease=15",)
"""A lease that a busy machine keeps; a test about silence has the one that a coordinator gives."""
# What another launcher around the tests may have set would be passed on to workers.
NOT_INHERITED = (
    *("CUDA_VISIBLE_DEVICES", "LOGLEVEL", "OMP_NUM_THREADS", "PET_", "PYTEST_", "PYTHON_EXEC"),
    *("RALLYPOINT_", "SLURM_", "TORCH_", "TORCHELASTIC_"),
)


class World:
    """What one test has started."""

    def __init__(self, folder: Path, coordinator: str, mailbox: str = "") -> None:
        self.folder = folder
        """Working directory of agents and workers."""
        self.job_id = f"job-{secrets.token_hex(4)}"
        self.target = coordinator
        """Address that agents are given."""
        self.jobs = Jobs(coordinator)
        self.mailbox = Mailbox(mailbox)
        self.ports = PortReserver()
        self.patience: tuple[str, ...] = PATIENCE
        self.is_plain = False
        """Whether commands get no flag but those that each user gives: the rest has its default."""
        self.forgets: bool | None = None
        """Whether coordinators lose what they know when they end; None: it is drawn."""
        self._mark = f"{MARK_ENV}={secrets.token_hex(8)}"
        self._commands: list[Command] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for command in self._commands:
            command.kill()
        left = await_none_marked(self._mark, limit_s=20)
        described = [describe(pid) for pid in left]
        for pid in left:
            kill(pid)
        self.jobs.channel.close()
        self.ports.close()
        await_none_marked(self._mark)
        for command in self._commands:
            command.drain()
        self.mailbox.close()
        assert described == [], f"left behind: {described}"

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of the commands that this test starts."""
        name, _, value = self._mark.partition("=")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(NOT_INHERITED)}
        ours = {name: value, MAILBOX_ENV: self.mailbox.name, "TMPDIR": str(self.folder)}
        ours["XDG_STATE_HOME"] = str(self.folder / "state")
        ours["XDG_CONFIG_HOME"] = str(self.folder / "config")
        return {**kept, "RALLYPOINT_LOG_FORMAT": "json", **ours, **(extra or {})}

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Command:
        """Start any command."""
        command = Command(name, list(argv), self.env(env), self.folder)
        self._commands.append(command)
        return command

    def run(
        self, *argv: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command that ends by itself."""
        done = subprocess.run(
            argv,
            env=self.env(env),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        shown = [one for line in done.stderr.splitlines() for one in with_prose(line)]
        done.stderr = "".join(f"{line}\n" for line in shown)
        return done

    def coordinator(
        self, port: int, *flags: str, program: Sequence[str | Path] = (COORDINATOR,)
    ) -> Command:
        """Start a coordinator of this test's own, and talk to it from now on.

        Unless `flags` or `forgets` say where it keeps its journal, that is drawn: in a file of this
        test, as users have it, or nowhere.
        """
        has_state = self.is_plain or any(flag.startswith("--state") for flag in flags)
        state = () if has_state else (self._draw_state(),)
        argv = [*map(str, program), "--host=127.0.0.1", f"--port={port}", *state, *flags]
        command = self.start("coordinator", argv)
        self.target = command.stdout_line().removeprefix("listening on ")
        self.jobs.channel.close()
        self.jobs = Jobs(self.target)
        return command

    def _draw_state(self) -> str:
        """Return where a coordinator of this test keeps its journal: the same for each of them."""
        if self.forgets is None:
            test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
            self.forgets = bool(draw(f"journal of {test}", 2))
        state = "memory" if self.forgets else f"sqlite:{self.folder}/journal.db"
        print(f"coordinators of this test have --state={state}")  # shown when it fails
        return f"--state={state}"

    def agent(
        self,
        name: str,
        *flags: str,
        nnodes: str = "1",
        nproc: int = 1,
        script: Sequence[str] = (OBEDIENT,),
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Command:
        """Start an agent of this test's job; `flags` may override what is set here."""
        argv = [*prefix, *self.argv(name, *flags, nnodes=nnodes, nproc=nproc, script=script)]
        return self.start(f"agent {name}", argv, env)

    def argv(
        self,
        name: str,
        *flags: str,
        nnodes: str = "1",
        nproc: int = 1,
        script: Sequence[str] = (OBEDIENT,),
    ) -> list[str]:
        """Return the command line of such an agent."""
        chosen = () if self.is_plain else ("--local-addr=127.0.0.1", *PROMPT, *self.patience)
        return [
            NODE_AGENT,
            f"--coordinator={self.target}",
            f"--job-id={self.job_id}",
            f"--node-name={name}",
            f"--nnodes={nnodes}",
            f"--nproc-per-node={nproc}",
            *chosen,
            *flags,
            *script,
        ]

    def standalone(self, *flags: str, script: Sequence[str] = (OBEDIENT,)) -> list[str]:
        """Return the command line of an agent with a built-in coordinator."""
        return [NODE_AGENT, "--standalone", "--restart-backoff=0", *flags, *script]

    def with_torchrun_link(self) -> dict[str, str]:
        """Return variables with which the command `torchrun` is a link to node-agent."""
        folder = self.folder / "bin"
        folder.mkdir()
        (folder / "torchrun").symlink_to(NODE_AGENT)
        return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}

    def marked(self) -> list[int]:
        """Return the processes that this test has caused and that live now."""
        return find_marked(self._mark)

    def kill(self, pid: int) -> None:
        """SIGKILL to a process that this test has caused, and wait until it is dead."""
        assert pid in self.marked()
        kill(pid)

    def left(self, spared: Collection[int] = (), limit_s: float = 20) -> list[str]:
        """Return the marked processes that live after a moment, but for the spared, described."""
        return [describe(pid) for pid in await_none_marked(self._mark, spared, limit_s)]
