"""What a forkserver is started with, and which workers it may fork. Pure.

It has the command line of a worker, and its environment without the variables of a round.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from rallypoint.agent.evidence.hook import with_hook
from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.helper.frames import FORKSERVER_FDS
from rallypoint.agent.in_worker.preload.rallypoint_checks import is_of_round

FDS_ENV = "RALLYPOINT_PRELOAD_FDS"
RECORD_ENV = "RALLYPOINT_PRELOAD_RECORD"
OWN_PREFIX = "RALLYPOINT_"

_OF_WORKER = "CUDA_VISIBLE_DEVICES"
"""With --virtual-local-rank, each worker of a node has its own value. CUDA reads it when it is
initialized, which no import has done."""
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
    """The module that runs as the main program; empty: it is not a module."""


def forkserver_environment(
    worker: Mapping[str, str], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a forkserver.

    Args:
        worker: the environment of a worker, in any round.
        inherited: what all workers inherit. It holds the mark by which a later agent finds what
            this one has left.
    """
    environment = {
        name: value
        for name, value in worker.items()
        if not is_of_round(name) or (name.startswith(OWN_PREFIX) and inherited.get(name) == value)
    }
    return with_hook(environment, FDS_ENV, ",".join(map(str, FORKSERVER_FDS)))


def find_difference(server: SpawnRequest, worker: SpawnRequest, shape: Shape) -> str:
    """Return why the forkserver cannot fork the worker, for people; empty: it can.

    Args:
        server: what the forkserver was started with.
        worker: what the worker would be started with.
        shape: of both command lines.
    """
    end = len(worker.argv) - shape.arguments
    if len(server.argv) != len(worker.argv) or server.argv[:end] != worker.argv[:end]:
        return "its command line differs"
    if not worker.cwd or os.path.abspath(server.cwd) != os.path.abspath(worker.cwd):
        return "its working directory differs"
    has, wants = server.env, with_hook(worker.env, FDS_ENV, "")
    names = (name for name in sorted(has.keys() | wants.keys()) if not _may_differ(name))
    differing = [name for name in names if has.get(name) != wants.get(name)]
    return f"its environment differs: {', '.join(differing[:3])}" if differing else ""


def forked_by(server: int, worker: SpawnRequest, shape: Shape) -> SpawnRequest:
    """Return the request of a worker that a forkserver forks: what is different there."""
    argv = worker.argv[len(worker.argv) - shape.arguments :]
    env = {name: value for name, value in worker.env.items() if _may_differ(name)}
    return worker._replace(argv=argv, env=env, via=server)


def _may_differ(name: str) -> bool:
    return is_of_round(name) or name == _OF_WORKER


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
    return tuple(
        name
        for name in names
        if name not in skipped and name.partition(".")[0] not in _NEVER_IMPORTED
    )
