"""Composes the requests by which the workers of a round start: destination, environment, command.

A thread does this, because it makes the folders of the round and opens its files, whose file system
may stand still.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.output.outputs import WorkerOutput
from rallypoint.agent.round.environ import (
    WorkerFiles,
    find_python,
    worker_command,
    worker_environment,
)
from rallypoint.agent.round.notices import notice_file
from rallypoint.agent.round.parts import NodeParts
from rallypoint.agent.torchelastic.error_files import read_stamp
from rallypoint.agent.torchelastic.logs_plugin import PluginAnswer

_WORKERS_MAX = 1 << 16
MACHINE_ERRORS = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EROFS,
        errno.ESTALE,
    }
)
"""What this machine lacks, and may have again: the job did nothing wrong. Other errors, such as a
folder that does not exist, are mistakes that no wait mends."""


class Prepared(Struct, frozen=True):
    """A worker whose files are open, or why it cannot be started."""

    request: SpawnRequest | None = None
    output: WorkerOutput | None = None
    refusal: str = ""


class WorkerRequests:
    """The requests for the workers of one round. Made in the event loop, used in any thread."""

    def __init__(self, parts: NodeParts, order: RunOrder, environment: Mapping[str, str]) -> None:
        """Note what all of them have in common.

        Args:
            parts: what the node has.
            order: the round and the node's place in it.
            environment: what its workers inherit.
        """
        self._parts = parts
        self._order = order
        self._environment = environment
        self._ours = (*parts.variables(), *parts.exits.variables().items())
        self._loop = asyncio.get_running_loop()

    def sample(self, local_rank: int) -> SpawnRequest:
        """Return the request of a worker, without files and destinations of its output."""
        return self._request(local_rank, WorkerOutput(error_file=""), WorkerFiles("", "", ""))

    def added_environments(self) -> dict[int, dict[str, str]]:
        """Return the variables that each worker does not inherit, without the plug-in's own.

        Raises:
            OSError: the agent's own folder cannot be made.
        """
        ranks = range(self._order.assignment.local_world_size)
        return {rank: self._added_environment(rank) for rank in ranks}

    def _added_environment(self, local_rank: int) -> dict[str, str]:
        files = self._files(local_rank, error_file="")
        added = self._environment_of(local_rank, files, {})
        names = added.keys() - {"TORCHELASTIC_ERROR_FILE"}
        environment = self._environment_of(local_rank, files, self._environment)
        return {name: environment[name] for name in sorted(names)}

    def prepare(self, answer: PluginAnswer | None) -> list[Prepared]:
        """Return the workers of the round, by local rank, with their files.

        Args:
            answer: what a plug-in assigns; None: there is no plug-in.

        Raises:
            OSError: the folders cannot be made, or the machine lacks what it takes to make files.
        """
        outputs, changed = self._parts.outputs, dict[int, dict[str, str]]()
        if answer is not None:
            changed, destinations = answer.environments, answer.destinations
            outputs.reify = lambda _: destinations
        outputs.begin(self._order)
        if outputs.folder.is_temporary and outputs.folder.path is not None:
            self._parts.own.note_logs(outputs.folder.path)
        workers: list[Prepared] = []
        try:
            for local_rank in range(self._order.assignment.local_world_size):
                workers.append(self._prepare_worker(local_rank, changed.get(local_rank, {})))
        except OSError:
            close_all(workers)
            raise
        return workers

    def _prepare_worker(self, local_rank: int, changed: Mapping[str, str]) -> Prepared:
        # ValueError: a plug-in returned text that this system cannot encode.
        output: WorkerOutput | None = None
        try:
            output = self._parts.outputs.open(self._order, local_rank, self._loop)
            # A plug-in may name one file in each round.
            if self._parts.plugin is not None and output.error_file:
                output.stale_error = read_stamp(Path(output.error_file))
            files = self._files(local_rank, output.error_file)
            request = self._request(local_rank, output, files, changed)
        except (OSError, ValueError) as error:
            if output is not None:
                output.close()
            if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
                raise
            return Prepared(refusal=f"cannot start a worker: {error}")
        return Prepared(request, output)

    def _request(
        self,
        local_rank: int,
        output: WorkerOutput,
        files: WorkerFiles,
        changed: Mapping[str, str] | None = None,
    ) -> SpawnRequest:
        launch, number = self._parts.launch, self._order.number
        python = find_python(self._environment)
        environment = self._environment_of(local_rank, files, self._environment)
        return SpawnRequest(
            worker_id=worker_id(number, local_rank),
            argv=worker_command(launch, python=python, round=number, local_rank=local_rank),
            env={**environment, **(changed or {})},
            cwd=find_folder(),
            stdout_fd=output.stdout_fd,
            stderr_fd=output.stderr_fd,
            is_forked=launch.function is not None and launch.function.is_forked,
            cpus=launch.cpus_of(local_rank),
        )

    def _files(self, local_rank: int, error_file: str) -> WorkerFiles:
        own, number = self._parts.own, self._order.number
        return WorkerFiles(
            error=error_file,
            notices=str(notice_file(own.path(), number)),
            server=own.socket_path(number, local_rank),
            marks=self._parts.marks.path(),
            armed=own.armed_prefix(number, local_rank) if self._parts.launch.is_hooked else "",
        )

    def _environment_of(
        self, local_rank: int, files: WorkerFiles, parent: Mapping[str, str]
    ) -> dict[str, str]:
        launch = self._parts.launch
        return worker_environment(
            parent,
            self._order,
            local_rank=local_rank,
            job_id=self._parts.job_id,
            files=files,
            virtual_local_rank=launch.virtual_local_rank,
            limits_threads=launch.limits_threads,
            master_addr=launch.master_addr,
            arming=launch.arming,
            ours=self._ours,
        )


def close_all(workers: list[Prepared]) -> None:
    """Close the files of workers that will not start."""
    for worker in workers:
        if worker.output is not None:
            worker.output.close()


def find_folder() -> str:
    """Return the working folder; empty if it was removed, so that only the helper can enter it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def worker_id(round: int, local_rank: int) -> int:
    """Return a number that no other worker of this agent has."""
    return round * _WORKERS_MAX + local_rank
