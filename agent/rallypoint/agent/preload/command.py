"""What a forkserver is started with, and which workers it may fork. Pure.

It has the command line of a worker, and its environment without the variables of a round.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.in_worker import PRELOAD
from rallypoint.agent.torchelastic.variables import SERVER_ENV

FDS_ENV = "RALLYPOINT_PRELOAD_FDS"
RECORD_ENV = "RALLYPOINT_PRELOAD_RECORD"
PYTHONPATH_ENV = "RALLYPOINT_PRELOAD_PYTHONPATH"
SOCKET_NUMBER = 63
"""The descriptor of the socket to the agent: above those that a program expects to be free, and
below any limit that an interpreter could start with."""
SERVES_NUMBER = 62
"""The descriptor of the socket to the helper."""
NAMES_MAX = 20_000
"""Modules that are preloaded at most; a program with torch and transformers has 3,000."""
OWN_PREFIX = "RALLYPOINT_"

_OF_ROUND = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", SERVER_ENV),
    )
)
_PREFIXES_OF_ROUND = ("TORCHELASTIC_", OWN_PREFIX)
_OF_WORKER = frozenset(("CUDA_VISIBLE_DEVICES",))
"""With --virtual-local-rank, each worker of a node has its own value. CUDA reads it when it is
initialized, which no import has done."""
_WHILE_IMPORTING = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""With it, `torch.cuda.is_available()` in an import does not initialize CUDA, which no fork could
use. A worker has its own value, or none."""
_PROBE = "import sys; sys.exit(0)"
_NEVER_IMPORTED = frozenset(("__main__", "__mp_main__", "sitecustomize", "usercustomize"))


class Preload(Struct, frozen=True, kw_only=True):
    """What the forkserver of a node does. The program of its workers is a Python program."""

    modules: tuple[str, ...] = ()
    """Modules that it imports, in this order."""
    calls: tuple[str, ...] = ()
    """Functions that it calls then, each as "pkg.mod:function"."""
    is_auto: bool = False
    """It imports what the workers of an earlier round on this node have imported."""


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


def forkserver_environment(
    worker: Mapping[str, str], inherited: Mapping[str, str], numbers: Sequence[int]
) -> dict[str, str]:
    """Return the environment of a forkserver.

    Args:
        worker: the environment of a worker, in any round.
        inherited: what all workers inherit. It holds the mark by which a later agent finds what
            this one has left.
        numbers: the descriptors of its sockets.
    """
    environment = {
        name: value
        for name, value in worker.items()
        if not is_of_round(name) or (name.startswith(OWN_PREFIX) and inherited.get(name) == value)
    }
    return with_hook(environment | _WHILE_IMPORTING, FDS_ENV, ",".join(map(str, numbers)))


def with_hook(environment: Mapping[str, str], name: str, value: str) -> dict[str, str]:
    """Return an environment in which an interpreter runs our hook, with one variable for it."""
    before = environment.get("PYTHONPATH")
    kept = {} if before is None else {PYTHONPATH_ENV: before}
    path = os.pathsep.join(filter(None, (PRELOAD, before)))
    return {**environment, **kept, "PYTHONPATH": path, name: value}


def probe_command(argv: Sequence[str], shape: Shape) -> tuple[str, ...]:
    """Return a command that tells whether the interpreter of a worker runs our hook."""
    return (*argv[: shape.flags_end], "-c", _PROBE)


def find_difference(server: SpawnRequest, worker: SpawnRequest, shape: Shape) -> str:
    """Return why the forkserver cannot fork the worker, for people; empty: it can.

    Args:
        server: what the forkserver was started with.
        worker: what the worker would be started with.
        shape: of both command lines.
    """
    if _without_arguments(server.argv, shape) != _without_arguments(worker.argv, shape):
        return "its command line differs"
    if len(server.argv) != len(worker.argv):
        return "its command line differs"
    if not worker.cwd or os.path.abspath(server.cwd) != os.path.abspath(worker.cwd):
        return "its working directory differs"
    wanted = with_hook({**worker.env, **_WHILE_IMPORTING}, FDS_ENV, "")
    differing = _differing(server.env, wanted)
    return f"its environment differs: {', '.join(differing[:3])}" if differing else ""


def _without_arguments(argv: Sequence[str], shape: Shape) -> tuple[str, ...]:
    return tuple(argv[: len(argv) - shape.arguments])


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    names = sorted((one.keys() | other.keys()) - _OF_WORKER)
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
