"""What a standby is started with, and which workers it may become. Pure.

A standby has the command line of its worker, and its environment without the variables of a round.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.in_worker import STANDBY
from rallypoint.agent.torchelastic.variables import SERVER_ENV

FD_ENV = "RALLYPOINT_STANDBY_FD"
RECORD_ENV = "RALLYPOINT_STANDBY_RECORD"
PYTHONPATH_ENV = "RALLYPOINT_STANDBY_PYTHONPATH"
SOCKET_NUMBER = 63
"""The socket's descriptor in a standby: above those that a program expects to be free, and below
any limit that an interpreter could start with."""
NAMES_MAX = 20_000
"""Modules that a standby imports; a program with torch and transformers has 3,000."""
OWN_PREFIX = "RALLYPOINT_"

_OF_ROUND = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", SERVER_ENV),
    )
)
_PREFIXES_OF_ROUND = ("TORCHELASTIC_", OWN_PREFIX)
_PROBE = "import sys; sys.exit(0)"
_NEVER_IMPORTED = frozenset(("__main__", "__mp_main__", "sitecustomize", "usercustomize"))


class Warmth(Struct, frozen=True, kw_only=True):
    """What the standbys of a node do. The program of its workers is a Python program."""

    modules: tuple[str, ...] = ()
    """Modules that they import, in this order."""
    calls: tuple[str, ...] = ()
    """Functions that they call then, each as "pkg.mod:function"."""
    is_auto: bool = False
    """They import what the workers of an earlier round on this node have imported."""
    memory_bytes: int | None = None
    """Memory that they may use together; None: a tenth of what there is."""


class Shape(Struct, frozen=True):
    """The command line of a worker, in parts."""

    flags_end: int
    """How many words the interpreter and its flags are."""
    arguments: int
    """How many words follow the script."""
    path: str | None
    """What the interpreter puts first on sys.path; None: nothing."""
    module: str = ""
    """The module that runs as the main program; empty: it is no module."""


def is_of_round(name: str) -> bool:
    """Return whether an environment variable may have another value in each round."""
    return name in _OF_ROUND or name.startswith(_PREFIXES_OF_ROUND)


def standby_environment(
    worker: Mapping[str, str], inherited: Mapping[str, str], *, socket_number: int = SOCKET_NUMBER
) -> dict[str, str]:
    """Return the environment of a standby.

    Args:
        worker: the environment of a worker, in any round.
        inherited: what all workers inherit. It holds the mark by which a later agent finds what
            this one has left.
        socket_number: the descriptor of the socket.
    """
    environment = {
        name: value
        for name, value in worker.items()
        if not is_of_round(name) or (name.startswith(OWN_PREFIX) and inherited.get(name) == value)
    }
    return with_hook(environment, FD_ENV, str(socket_number))


def with_hook(environment: Mapping[str, str], name: str, value: str) -> dict[str, str]:
    """Return an environment in which an interpreter runs our hook, with one variable for it."""
    before = environment.get("PYTHONPATH")
    kept = {} if before is None else {PYTHONPATH_ENV: before}
    path = os.pathsep.join(filter(None, (STANDBY, before)))
    return {**environment, **kept, "PYTHONPATH": path, name: value}


def probe_command(argv: Sequence[str], shape: Shape) -> tuple[str, ...]:
    """Return a command that tells whether the interpreter of a worker runs our hook."""
    return (*argv[: shape.flags_end], "-c", _PROBE)


def find_difference(
    standby: SpawnRequest, worker: SpawnRequest, shape: Shape, inherited: Mapping[str, str]
) -> str:
    """Return why the standby cannot become the worker, for people; empty: it can.

    Args:
        standby: what the standby was started with.
        worker: what the worker would be started with.
        shape: of both command lines.
        inherited: what all workers inherit.
    """
    if _without_arguments(standby.argv, shape) != _without_arguments(worker.argv, shape):
        return "its command line differs"
    if len(standby.argv) != len(worker.argv):
        return "its command line differs"
    if not worker.cwd or os.path.abspath(standby.cwd) != os.path.abspath(worker.cwd):
        return "its working directory differs"
    if standby.cpus != worker.cpus:
        return "its CPUs differ"
    differing = _differing(standby.env, standby_environment(worker.env, inherited))
    return f"its environment differs: {', '.join(differing[:3])}" if differing else ""


def _without_arguments(argv: Sequence[str], shape: Shape) -> tuple[str, ...]:
    return tuple(argv[: len(argv) - shape.arguments])


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    names = sorted(one.keys() | other.keys())
    return [name for name in names if one.get(name) != other.get(name) and not is_of_round(name)]


def arguments_of(argv: Sequence[str], shape: Shape) -> tuple[str, ...]:
    """Return what follows the script in a worker's command line."""
    return tuple(argv[len(argv) - shape.arguments :])


def importable(
    recorded: Iterable[str], failed: Collection[str], module: str = ""
) -> tuple[str, ...]:
    """Return the modules to import of those that a program has looked for, in its order.

    Args:
        recorded: their names; some may occur several times.
        failed: those that could not be imported before.
        module: the module that runs as the main program, and must not be imported; if it is a
            package, that is its `__main__`.
    """
    names = dict.fromkeys(recorded)
    main = f"{module}.__main__"
    skipped = {"", main, *failed} | ({module} if main not in names else set())
    kept = (
        name
        for name in names
        if name not in skipped and name.partition(".")[0] not in _NEVER_IMPORTED
    )
    return tuple(kept)[:NAMES_MAX]
