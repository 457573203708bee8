"""The same command line through torchrun and through node-agent, and what came of it.

A scenario is a command line for each node without its first word, and a check of what came of it.
The check is the same for both launchers; where they differ on purpose it says so with
`Ran.expected`, which names both values and the reason.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from support.processes.commands import NODE_AGENT, SCRIPTS, Command
from support.processes.world import OBEDIENT, WORKERS, World

T = TypeVar("T")
RUN_LIMIT_S = 120.0
"""For one launcher to end: far beyond what is expected, so that a busy machine passes."""
INPUTS = (WORKERS / "launched", Path(OBEDIENT))
"""What every scenario runs: the files of a folder, and one more."""
OWN = ("TMPDIR", "PYTHON")
"""Variables that every launcher is given."""


class Launcher(Enum):
    """Who starts the workers."""

    TORCHRUN = "torchrun"
    NODE_AGENT = "node-agent"


@dataclass(frozen=True, slots=True)
class Told:
    """What one worker has written down, see tests/e2e/workers/launched/tell.py."""

    pid: int
    argv: list[str]
    command: list[str]
    env: dict[str, str]
    cwd: str
    main: str
    session: int
    at_s: float
    terminals: list[bool]
    """Whether standard input, output and error are a terminal."""
    files: list[int]
    """Descriptors that were open when it began."""
    limits: dict[str, Any]
    """Umask, resource limits and the like."""
    stdin: str | None

    @property
    def rank(self) -> int:
        return int(self.env["RANK"])


@dataclass(frozen=True, slots=True)
class Ended:
    """What one node's launcher has left."""

    code: int
    out: list[str]
    """Lines of standard output."""
    err: list[str]
    """Lines of standard error."""
    env: dict[str, str]
    """What it was started with."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a scenario ran."""

    limits: dict[str, Any]
    """What the launchers inherited, by the names of `Told.limits`."""

    @property
    def processors(self) -> list[int]:
        """Those that the launchers might use."""
        found: list[int] = self.limits["processors"]
        return found

    @classmethod
    def of_this_process(cls) -> Machine:
        status = Path("/proc/self/status").read_text().splitlines()
        limits = {
            "nice": os.nice(0),
            "umask": next(int(line.split()[1], 8) for line in status if line[:6] == "Umask:"),
            "oom": Path("/proc/self/oom_score_adj").read_text().strip(),
            "files": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
            "core": list(resource.getrlimit(resource.RLIMIT_CORE)),
            "processors": sorted(os.sched_getaffinity(0)),
        }
        return cls(limits)


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a scenario with one launcher."""

    launcher: Launcher
    folder: Path
    """Working directory of the launchers, and so of their workers."""
    nodes: list[Ended]
    told: list[Told]
    """By restart count, then by rank."""
    port: str
    """What `@port` was."""
    machine: Machine

    @property
    def codes(self) -> list[int]:
        return [node.code for node in self.nodes]

    @property
    def out(self) -> list[str]:
        """Lines of standard output, all nodes, sorted: workers print side by side."""
        return sorted(line for node in self.nodes for line in node.out)

    @property
    def err(self) -> str:
        """Standard error, all nodes."""
        return "\n".join(line for node in self.nodes for line in node.err)

    def expected(self, *, torchrun: T, node_agent: T, why: str) -> T:
        """Return what is expected of this launcher where both differ on purpose."""
        assert why
        return torchrun if self.launcher is Launcher.TORCHRUN else node_agent

    def values(self, *names: str) -> list[str]:
        """Return a line per worker: the values of these variables, `-` for one that is not set."""
        return [" ".join(told.env.get(name, "-") for name in names) for told in self.told]

    def files(self, folder: str) -> dict[str, str]:
        """Return the content of every file below a folder, by path.

        Left out is the folder whose name is the run and what both launchers draw at random.
        """
        below = self.folder / folder
        run = self.told[0].env["TORCHELASTIC_RUN_ID"]
        found = {}
        for path in sorted(below.rglob("*")):
            if path.is_file():
                top, *rest = path.relative_to(below).parts
                assert top.startswith(f"{run}_"), path
                found["/".join(rest)] = path.read_bytes().decode(errors="replace")
        return found


Drive = Callable[[World, list[Command]], None]
"""What the test does while the launchers run."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One command line for each launcher, and what must come of it."""

    check: Callable[[Ran], None]
    command: str
    """Flags, script and arguments, as in a shell; `@port` is a free port, the same on all
    nodes, `@python` the interpreter, `@processor` one that may be used."""
    nodes: tuple[str, ...] = ("",)
    """For each node the flags before the others."""
    env: Mapping[str, str] = field(default_factory=dict)
    drive: Drive | None = None
    prefix: str = ""
    """Words before the launcher, as in a shell."""

    @property
    def name(self) -> str:
        return self.check.__name__


def scenario(
    command: str,
    *,
    nodes: tuple[str, ...] = ("",),
    env: Mapping[str, str] | None = None,
    drive: Drive | None = None,
    prefix: str = "",
) -> Callable[[Callable[[Ran], None]], Scenario]:
    """Make a check the scenario of this name; its docstring is the claim."""
    return lambda check: Scenario(check, command, nodes, env or {}, drive, prefix)


def run_scenario(
    scenario: Scenario, launcher: Launcher, folder: Path, *, instead: Sequence[str] = ()
) -> Ran:
    """Run a scenario's command lines with one launcher, and end whatever it has left.

    Args:
        scenario: the command lines.
        launcher: what runs them.
        folder: where they run.
        instead: words in place of the launcher's name, if any.
    """
    launched, obedient = INPUTS
    shutil.copytree(launched, folder, dirs_exist_ok=True)
    shutil.copy(obedient, folder)
    (folder / "tmp").mkdir()
    with World(folder, "localhost:1") as world:
        own = dict(zip(OWN, (str(folder / "tmp"), sys.executable), strict=True))
        env = world.env({**own, **scenario.env})
        port = str(world.ports.reserve())
        is_ours = launcher is Launcher.NODE_AGENT
        launch = instead or [NODE_AGENT if is_ours else str(SCRIPTS / "torchrun")]
        commands = []
        for number, flags in enumerate(scenario.nodes):
            words = _split(f"{flags} {scenario.command}", port)
            argv = [*_split(scenario.prefix, port), *launch, *words]
            commands.append(world.start(f"{launcher.value} {number}", argv, env))
        if scenario.drive is not None:
            try:
                scenario.drive(world, commands)
            except AssertionError as error:
                for command in commands:
                    error.add_note(f"{command.name} printed:\n{command.stderr()}")
                raise
        codes = [command.wait(RUN_LIMIT_S) for command in commands]
    nodes = [
        Ended(code, command.stdout().splitlines(), command.stderr().splitlines(), env)
        for code, command in zip(codes, commands, strict=True)
    ]
    return Ran(launcher, folder, nodes, _read_told(folder), port, Machine.of_this_process())


def _split(text: str, port: str) -> list[str]:
    processor = str(min(os.sched_getaffinity(0)))
    for name, value in (("port", port), ("python", sys.executable), ("processor", processor)):
        text = text.replace(f"@{name}", value)
    return shlex.split(text)


def _read_told(folder: Path) -> list[Told]:
    found: list[dict[str, Any]] = [
        json.loads(path.read_text()) for path in (folder / "told").glob("*.json")
    ]
    told = [Told(**fields) for fields in found]
    return sorted(told, key=lambda one: (int(one.env["TORCHELASTIC_RESTART_COUNT"]), one.rank))
