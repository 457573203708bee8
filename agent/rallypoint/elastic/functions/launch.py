"""How a function runs as the workers of a node: its start method, its files, its return values.

    spawn       every worker is a fresh interpreter, which unpickles the call.
    forkserver  a small helper process forks the workers, which unpickle the call.
    fork        the workers are copies of the caller's process, and nothing is pickled.

Whatever the method, a helper process is the parent of all workers, and nothing outlives it.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]
from typing import Any

from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.helper.leftovers import AGENT_MARK_ENV, compute_mark
from rallypoint.agent.in_worker.forked import InheritedCall
from rallypoint.agent.workers.dead_folders import PREFIX, lock_folder
from rallypoint.agent.workers.environ import Function, Launch
from rallypoint.elastic.errors import SignalException
from rallypoint.elastic.functions.payload import write_payload


class StartMethod(StrEnum):
    """How the process of a worker begins; the names of `multiprocessing`."""

    SPAWN = "spawn"
    FORK = "fork"
    FORKSERVER = "forkserver"


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
        self.start_method = StartMethod(start_method)
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # for this user alone: mode 0700
        self._held_fd = -1
        """Holds the lock by which other agents know that this process lives."""
        try:
            with suppress(OSError):  # no locks here: nothing but this process removes the folder
                self._held_fd = lock_folder(self._folder)
            payload = "" if self.start_method is StartMethod.FORK else str(self._folder / "call")
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
                is_forked=self.start_method is not StartMethod.SPAWN,
            ),
        )
        self._call = InheritedCall(entrypoint, tuple(args))

    def host(self) -> WorkerHost:
        """Start the helper process that suits the start method.

        Call it before gRPC starts in this process.

        Raises:
            OSError: the process cannot start.
        """
        if self.start_method is StartMethod.FORK:
            return WorkerHost.fork(self._call)
        if self.start_method is StartMethod.FORKSERVER:
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
