"""Starts the workers of a round: their destinations, environments and commands.

A plug-in for logs, if there is one, first assigns where each worker of the round writes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.helper.host import WorkerHostError
from rallypoint.agent.output.outputs import WorkerOutput, WorkerOutputs
from rallypoint.agent.torchelastic.logs_plugin import LogsPlugin, LogsPluginError, PluginAnswer
from rallypoint.agent.workers.environ import Launch, WorkerFiles, worker_command, worker_environment
from rallypoint.agent.workers.notices import notice_file
from rallypoint.agent.workers.own_folder import OwnFolder

_WORKERS_MAX = 1 << 16


class Launcher(Struct):
    """Starts the workers of one node."""

    launch: Launch
    job_id: str
    environment: Mapping[str, str]
    """The environment that workers inherit."""
    variables: Callable[[], Iterable[tuple[str, str]]]
    """Further variables of ours; called when a round starts."""
    tasks: asyncio.TaskGroup
    outputs: WorkerOutputs
    own: OwnFolder
    plugin: LogsPlugin | None
    """Assigns where the workers of a round write; None: `outputs` does."""
    is_wanted: Callable[[int], bool]
    """Whether a round still has to start or keep running."""
    spawn: Callable[[RunOrder, int, SpawnRequest, WorkerOutput], None]
    """Asks the helper for the worker with this local rank."""
    refuse: Callable[[RunOrder, int, str], None]
    """Reports that the worker with this local rank cannot be started, and why."""
    _asking: tuple[RunOrder, asyncio.Task[None]] | None = None
    """The round for which the plug-in was asked last."""

    def start(self, order: RunOrder) -> None:
        """Start the workers of a round, in rank order; with a plug-in, once it has answered."""
        if self.plugin is None:
            self._start(order, None)
        else:
            self._asking = order, self.tasks.create_task(self._ask_and_start(self.plugin, order))

    def stop(self) -> None:
        """Start no worker of a round that was stopped before the plug-in answered."""
        if self._asking is None or self._asking[1].done():
            return
        order, task = self._asking
        if not self.is_wanted(order.number):
            self._asking = None
            task.cancel()
            self._refuse_all(order, "the round was stopped before its workers started")

    async def _ask_and_start(self, plugin: LogsPlugin, order: RunOrder) -> None:
        ranks = range(order.assignment.local_world_size)
        try:
            envs = {rank: self._added_environment(order, rank) for rank in ranks}
            answer = await plugin.ask(envs)
        except (LogsPluginError, OSError) as error:
            self._refuse_all(order, str(error))
        else:
            self._start(order, answer)

    def _start(self, order: RunOrder, answer: PluginAnswer | None) -> None:
        changed: dict[int, dict[str, str]] = {}
        if answer is not None:
            changed, destinations = answer.environments, answer.destinations
            self.outputs.reify = lambda _: destinations
        try:
            self.outputs.begin(order)
        except OSError as error:
            self._refuse_all(order, f"cannot start a worker: {error}")
            return
        for local_rank in range(order.assignment.local_world_size):
            try:
                self._start_worker(order, local_rank, changed.get(local_rank, {}))
            except (OSError, WorkerHostError, ValueError) as error:
                # ValueError: a plug-in returned text that this system cannot encode, or the text
                # exceeds a frame.
                self.refuse(order, local_rank, f"cannot start a worker: {error}")

    def _refuse_all(self, order: RunOrder, text: str) -> None:
        for local_rank in range(order.assignment.local_world_size):
            self.refuse(order, local_rank, text)

    def _start_worker(self, order: RunOrder, local_rank: int, changed: Mapping[str, str]) -> None:
        python = self.environment.get("PYTHON_EXEC") or sys.executable
        with self.outputs.open(order, local_rank) as output:
            files = self._files(order, local_rank, output.error_file)
            environment = self._environment(order, local_rank, files, self.environment)
            request = SpawnRequest(
                worker_id=worker_id(order.number, local_rank),
                argv=worker_command(self.launch, python=python, local_rank=local_rank),
                env={**environment, **changed},
                cwd=os.getcwd(),
                stdout_fd=output.stdout_fd,
                stderr_fd=output.stderr_fd,
                cpus=self.launch.cpus_of(local_rank),
            )
            self.spawn(order, local_rank, request, output)

    def _added_environment(self, order: RunOrder, local_rank: int) -> dict[str, str]:
        """Return the variables that a worker does not inherit, without the plug-in's own."""
        files = self._files(order, local_rank, error_file="")
        names = self._environment(order, local_rank, files, {}).keys() - {"TORCHELASTIC_ERROR_FILE"}
        environment = self._environment(order, local_rank, files, self.environment)
        return {name: environment[name] for name in sorted(names)}

    def _files(self, order: RunOrder, local_rank: int, error_file: str) -> WorkerFiles:
        return WorkerFiles(
            error=error_file,
            notices=str(notice_file(self.own.path(), order.number)),
            server=self.own.socket_path(order.number, local_rank),
        )

    def _environment(
        self, order: RunOrder, local_rank: int, files: WorkerFiles, parent: Mapping[str, str]
    ) -> dict[str, str]:
        return worker_environment(
            parent,
            order,
            local_rank=local_rank,
            job_id=self.job_id,
            files=files,
            virtual_local_rank=self.launch.virtual_local_rank,
            ours=self.variables(),
        )


def worker_id(round: int, local_rank: int) -> int:
    """Return a number that no other worker of this agent has."""
    return round * _WORKERS_MAX + local_rank
