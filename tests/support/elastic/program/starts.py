"""How workers start: the three methods, the main module, the environment."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.elastic.program.case import Setup, case
from support.elastic.program.failures import raises
from support.elastic.program.outcome import clean_deep, launch
from support.elastic.program.values import echoes, rank, returns_an_object, returns_nothing

METHODS = ("spawn", "fork", "forkserver")
NAMES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE"),
    *("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS"),
    *("TORCHELASTIC_ERROR_FILE", "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_SIGNALS_TO_HANDLE"),
)
STATE: list[str] = []
"""Changed by the launcher before it launches."""


def environment() -> dict[str, Any]:
    found: dict[str, Any] = {name: os.environ.get(name) for name in NAMES}
    return {**found, "has_port": 0 < int(os.environ["MASTER_PORT"]) < 65536}


def describe_main() -> list[Any]:
    """Return what a worker has of the program that has launched it."""
    main = sys.modules["__main__"]
    path = Path(getattr(main, "__file__", None) or "none")
    return [path.name, [Path(sys.argv[0]).name, *sys.argv[1:2]], Path.cwd() == Path(os.getcwd())]


def leaves_a_mark(folder: str) -> None:
    atexit.register((Path(folder) / f"ended-{rank()}").touch)


def writes() -> None:
    sys.stdout.write(f"out {rank()} without an end of line")
    print(f"err {rank()}", file=sys.stderr)


def each_method(run: Callable[[str], Any]) -> dict[str, Any]:
    """Return what comes of each start method."""
    return {method: run(method) for method in METHODS}


@case()
def values_of_each_method(setup: Setup) -> Any:
    """The same values."""
    return each_method(lambda method: launch(setup, returns_an_object, start_method=method))


@case()
def lambda_by_spawn(setup: Setup) -> Any:
    """It cannot be pickled."""
    return launch(setup, lambda: rank(), start_method="spawn")


@case()
def lambda_by_fork(setup: Setup) -> Any:
    """It need not be pickled."""
    return launch(setup, lambda: rank(), start_method="fork")


@case()
def lambda_by_forkserver(setup: Setup) -> Any:
    """It cannot be pickled."""
    return launch(setup, lambda: rank(), start_method="forkserver")


@case()
def nested_function_by_spawn(setup: Setup) -> Any:
    """It cannot be pickled."""

    def nested() -> int:
        return rank()

    return launch(setup, nested, start_method="spawn")


@case()
def argument_that_cannot_be_pickled(setup: Setup) -> Any:
    """A lock."""
    return launch(setup, echoes, threading.Lock(), start_method="spawn")


@case()
def unknown_method(setup: Setup) -> Any:
    """It is refused."""
    return launch(setup, returns_nothing, start_method="thread")


@case()
def function_of_the_main_module(setup: Setup) -> Any:
    """The main module is imported under another name."""
    function = sys.modules["__main__"].of_the_main_module
    return each_method(lambda method: launch(setup, function, "word", start_method=method))


@case()
def functions_at_exit(setup: Setup) -> Any:
    """Whether `atexit` runs."""

    def run(method: str) -> Any:
        for path in setup.folder.glob("ended-*"):
            path.unlink()
        found = launch(setup, leaves_a_mark, str(setup.folder), start_method=method)
        return [found, sorted(path.name for path in setup.folder.glob("ended-*"))]

    return each_method(run)


@case()
def environment_of_workers(setup: Setup) -> Any:
    """The variables of torchrun."""
    found = launch(setup, environment, of=lambda value: clean_deep(setup, value))
    return [found, os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE")]


@case()
def environment_of_the_launcher(setup: Setup) -> Any:
    """Workers have it as it is when they are launched."""
    os.environ["OMP_NUM_THREADS"] = "3"
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ["CUDA_VISIBLE_DEVICES"] = "5,7"
    return launch(setup, environment, of=lambda value: clean_deep(setup, value))


@case()
def virtual_local_rank(setup: Setup) -> Any:
    """LOCAL_RANK is 0 and a worker sees one device."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "5,7"
    fields = {"virtual_local_rank": True}
    return launch(setup, environment, of=lambda value: clean_deep(setup, value), **fields)


@case()
def launch_from_a_thread(setup: Setup) -> Any:
    """Without signal handlers, but with values."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(launch(setup, rank)))
    thread.start()
    thread.join()
    return found


@case()
def many_launches_of_one_program(setup: Setup) -> Any:
    """Each begins afresh, after a success as after a failure."""
    found: list[Any] = []
    for function, args in ((rank, ()), (raises, ("plain",)), (rank, ())):
        run_id = f"launch-{len(found)}"
        found.append(launch(setup, function, *args, run_id=run_id, nproc_per_node=1))
    return found
