"""Functions as workers: what they are called with, how they start, and what they return.

    spawn       every worker is a fresh interpreter, which unpickles the call.
    forkserver  a small helper process forks the workers, which unpickle the call.
    fork        the workers are copies of the caller's process, and nothing is pickled.

Whatever the method, a helper process is the parent of all workers, and nothing outlives it.

A function is pickled by name: the worker imports its module. A main module with a file is imported
there as `__mp_main__`, as `multiprocessing` does. In a notebook the main module has no file, so its
functions and classes are pickled by value, which takes cloudpickle.
"""

from __future__ import annotations

import importlib
import os
import pickle
import shutil
import tempfile
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import spawn
from pathlib import Path
from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]
from types import CodeType, FunctionType, ModuleType
from typing import Any, BinaryIO

from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.helper.leftovers import AGENT_MARK_ENV, compute_mark
from rallypoint.agent.in_worker.forked import InheritedCall
from rallypoint.agent.round.dead_folders import PREFIX, lock_folder
from rallypoint.agent.round.environ import Function, Launch
from rallypoint.elastic.errors import SignalException
from rallypoint.elastic.values import check_start_method

_PROTOCOL = 5
"""Writes large arguments to the file without a second copy."""
_FILE_NAME = 10
"""Which argument of `types.CodeType` is the name of the file."""

_MAIN = {"init_main_from_name", "init_main_from_path"}
"""Where the worker finds the main module: in the path of modules, or in a file."""


class FunctionLaunch:
    """A function with its arguments, ready to run as workers.

    Attributes:
        launch: what the agent starts.
    """

    launch: Launch

    def __init__(
        self, entrypoint: Callable[..., Any], args: Sequence[Any] = (), start_method: str = "spawn"
    ) -> None:
        """Make a private folder, with the pickled call for methods that need it.

        Args:
            entrypoint: the function; every worker calls it.
            args: its arguments; `${local_rank}` in strings is replaced.
            start_method: spawn, fork or forkserver.

        Raises:
            ValueError: there is no such start method.
            UnpicklableFunction: the method needs a call that can be pickled.
            OSError: the folder cannot be made or written.
        """
        check_start_method(start_method)
        self.start_method = start_method
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # for this user alone: mode 0700
        self._held_fd = -1
        """Holds the lock by which other agents know that this process lives."""
        try:
            with suppress(OSError):  # no locks here: nothing but this process removes the folder
                self._held_fd = lock_folder(self._folder)
            payload = "" if self.start_method == "fork" else str(self._folder / "call")
            if payload:
                write_payload(Path(payload), entrypoint, tuple(args))
            results = self._folder / "results"
            results.mkdir()
        except BaseException:
            self.close()
            raise
        self.launch = Launch(
            script=getattr(entrypoint, "__qualname__", repr(entrypoint)),
            args=(),
            function=Function(
                payload=payload,
                results=str(results),
                flags=tuple(_args_from_interpreter_flags()),
                is_forked=start_method != "spawn",
            ),
        )
        self._call = InheritedCall(entrypoint, tuple(args))

    def host(self) -> WorkerHost:
        """Start the helper process that suits the start method.

        Call it before gRPC starts in this process.

        Raises:
            OSError: the process cannot start.
        """
        if self.start_method == "fork":
            return WorkerHost.fork(self._call)
        if self.start_method == "forkserver":
            # Without exec, its workers keep its environment as far as other processes can see it.
            environment = {**os.environ, AGENT_MARK_ENV: compute_mark("forkserver")}
            return WorkerHost.launch_server(_args_from_interpreter_flags(), environment)
        return WorkerHost.launch()

    def results(self, round: int, local_ranks: Iterable[int]) -> dict[int, Any]:
        """Return what workers returned, by local rank.

        A worker that ended with exit code 0 without a return, as `sys.exit(0)` does, returned None.

        Args:
            round: the workers' round.
            local_ranks: of workers that have ended with exit code 0.

        Raises:
            ResultUnreadable: a value cannot be unpickled here.
        """
        return {local_rank: self._result(round, local_rank) for local_rank in local_ranks}

    def _result(self, round: int, local_rank: int) -> Any:
        assert self.launch.function is not None
        try:
            file = open(self.launch.function.result_file(round, local_rank), "rb")
        except FileNotFoundError:
            return None
        with file:
            try:
                return pickle.load(file)
            except SignalException:  # a signal to this program, while the value is read
                raise
            except Exception as error:
                raise ResultUnreadable(local_rank, error) from error

    def close(self) -> None:
        """Remove the folder with the call and the return values."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._held_fd >= 0:
            os.close(self._held_fd)
            self._held_fd = -1


class ResultUnreadable(Exception):
    """The return value of a worker cannot be unpickled in the caller's process.

    Attributes:
        local_rank: of the worker.
    """

    def __init__(self, local_rank: int, error: Exception) -> None:
        """Carry the reason."""
        why = f"{type(error).__name__}: {error}"
        super().__init__(f"the return value of local rank {local_rank} cannot be unpickled: {why}")
        self.local_rank = local_rank


class UnpicklableFunction(pickle.PicklingError):
    """The function, or one of its arguments, cannot be sent to another interpreter."""

    def __init__(self, name: str, why: str, advice: str) -> None:
        """Carry the function's name, the reason, and what to do."""
        super().__init__(f"{name} and its arguments cannot be pickled: {why}; {advice}")


class _ByNamePickler(pickle.Pickler):
    """Refuses what a worker cannot import, because the main module has no file."""

    def reducer_override(self, value: Any) -> Any:
        """Refuse functions and classes of the main module."""
        if isinstance(value, (FunctionType, type)) and value.__module__ == "__main__":
            why = f"{value.__qualname__} is defined in a main module without a file"
            raise pickle.PicklingError(why)
        return NotImplemented


def write_payload(path: Path, entrypoint: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Write what a fresh interpreter needs for the call.

    Args:
        path: a new file.
        entrypoint: the function.
        args: its arguments.

    Raises:
        UnpicklableFunction: with advice.
        OSError: the file cannot be written.
        RuntimeError: the calling process is a worker that imports its main module.
    """
    preparation = _preparation()
    with open(path, "xb") as file:
        pickle.dump(preparation, file, _PROTOCOL)
        begin = file.tell()
        for pickler, is_by_value in _picklers(not _MAIN.isdisjoint(preparation)):
            try:
                pickler(file, _PROTOCOL).dump((entrypoint, args, is_by_value))
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - an object may raise anything when pickled
                failure = error
                file.seek(begin)
                file.truncate()
            else:
                return
    name = getattr(entrypoint, "__qualname__", repr(entrypoint))
    raise UnpicklableFunction(name, str(failure), _advice()) from failure


def _preparation() -> dict[str, Any]:
    """Return what `multiprocessing.spawn.prepare` needs.

    The name of the process and its folder are left out: the helper sets the folder. So is a main
    module whose file does not exist, such as `<stdin>`.
    """
    preparation = spawn.get_preparation_data("")
    preparation["authkey"] = bytes(preparation["authkey"])  # which refuses to be pickled otherwise
    left_out = {"name", "dir"}
    if not os.path.exists(preparation.get("init_main_from_path", "")):
        left_out.add("init_main_from_path")
    return {key: value for key, value in preparation.items() if key not in left_out}


def _picklers(is_main_importable: bool) -> list[tuple[Callable[[BinaryIO, int], Any], bool]]:
    """Return the picklers to try, and whether each pickles by value what has no module."""
    by_value = _cloudpickle()
    last = [] if by_value is None else [(_keeping_file_names(by_value.Pickler), True)]
    if is_main_importable:
        return [(pickle.Pickler, False), *last]
    return last or [(_ByNamePickler, False)]


def _keeping_file_names(base: Any) -> Any:
    """Return cloudpickle's pickler, but with the names of files in code.

    Since 3.1.3 it writes "<dynamic-code>" instead, and no traceback could show the lines of a cell.
    """
    reduce = base.dispatch_table[CodeType]

    def reduce_code(code: CodeType) -> tuple[type[CodeType], tuple[Any, ...]]:
        make, args = reduce(code)
        return make, (*args[:_FILE_NAME], code.co_filename, *args[_FILE_NAME + 1 :])

    table = ChainMap({CodeType: reduce_code}, base.dispatch_table)
    return type("FileNamesPickler", (base,), {"dispatch_table": table})


def _cloudpickle() -> ModuleType | None:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def _advice() -> str:
    choices = "define them in a module, or use the start method fork"
    return choices if _cloudpickle() else f"{choices}, or install cloudpickle"
