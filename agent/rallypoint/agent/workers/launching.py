"""Starts the workers of a round: their destinations, environments and commands.

A plug-in for logs, if there is one, first assigns where each worker of the round writes. Then a
thread makes the folders and opens the files: their file system may stand still. Last, the event
loop asks the helper for all workers.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.helper.host import WorkerHostError
from rallypoint.agent.output.outputs import WorkerOutput, WorkerOutputs
from rallypoint.agent.torchelastic.error_files import read_stamp
from rallypoint.agent.torchelastic.logs_plugin import LogsPlugin, LogsPluginError, PluginAnswer
from rallypoint.agent.workers.environ import (
    Launch,
    WorkerFiles,
    find_python,
    worker_command,
    worker_environment,
)
from rallypoint.agent.workers.marks import MarkPipe
from rallypoint.agent.workers.notices import notice_file
from rallypoint.agent.workers.own_folder import OwnFolder
from rallypoint.base.file_thread import FileThread, Pending

if TYPE_CHECKING:  # a node that preloads nothing loads nothing of it
    from rallypoint.agent.preload.preloader import Preloader

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
DOING = "making the folders and files of a round"
PATIENCE_S = 0.01
"""How long a start blocks the event loop, at most: a file system that answers at once costs no turn
of the loop, in which a built-in coordinator or the log may have much to do."""


Variables = tuple[tuple[str, str], ...]


class Prepared(Struct):
    """A worker whose files are open, or why it cannot be started."""

    request: SpawnRequest | None = None
    output: WorkerOutput | None = None
    refusal: str = ""


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
    unprepared: Callable[[RunOrder, str], None]
    """Reports that this node cannot make the folders and files of a round, and why."""
    files: FileThread
    """Makes the folders and opens the files of a round."""
    began: Callable[[RunOrder], None]
    """Learns that the workers of a round were requested."""
    marks: MarkPipe
    """Hears which milestones they reach."""
    preloader: Preloader | None = None
    """Lets workers be forked; None: all start by themselves."""
    _held: list[Prepared] | None = None
    """Workers that wait until they can be forked."""
    _starting: tuple[RunOrder, asyncio.Task[None]] | None = None
    """The round whose files are being prepared."""
    _pending: Pending[list[Prepared]] | None = None
    """The preparation, once it has begun."""

    @property
    def is_starting(self) -> bool:
        """True while the files of a round are prepared."""
        return self._starting is not None

    def start(self, order: RunOrder) -> None:
        """Start the workers of a round, in rank order, once their files are prepared."""
        ours, loop = tuple(self.variables()), asyncio.get_running_loop()
        self._pending = None
        if self.plugin is not None:
            asked = self._ask_and_start(self.plugin, order, ours)
            self._starting = order, self.tasks.create_task(asked)
            return
        try:
            pending = self.files.begin(partial(self._prepare, order, ours, None, loop))
            workers = pending.result() if pending.has_returned(PATIENCE_S) else None
        except OSError as error:
            self._give_up(order, error)
            return
        if workers is not None:
            self._start(order, workers)
        else:
            self._pending = pending
            self._starting = order, self.tasks.create_task(self._await_and_start(order, pending))

    def stop(self) -> None:
        """Start no worker of a round that was stopped before its files were prepared."""
        if self._starting is None:
            return
        order, task = self._starting
        if not self.is_wanted(order.number):
            self._starting = None
            task.cancel()
            if self._pending is not None:
                self.files.drop(self._pending, _close_all)
            if self._held is not None:
                _close_all(self._held)
                self._held = None
            self._refuse_all(order, "the round was stopped before its workers started")

    async def _ask_and_start(self, plugin: LogsPlugin, order: RunOrder, ours: Variables) -> None:
        try:
            added = partial(self._added_environments, order, ours)
            answer = await plugin.ask(await self.files.run(DOING, added))
            loop = asyncio.get_running_loop()
            pending = self.files.begin(partial(self._prepare, order, ours, answer, loop))
        except (LogsPluginError, OSError) as error:
            self._starting = None
            if isinstance(error, OSError):
                self._give_up(order, error)
            else:
                self._refuse_all(order, str(error))
            return
        self._pending = pending
        await self._await_and_start(order, pending)

    async def _await_and_start(self, order: RunOrder, pending: Pending[list[Prepared]]) -> None:
        failure: OSError | None = None
        try:
            workers = await self.files.wait(DOING, pending)
        except OSError as error:
            failure = error
        # No stop after this cancels the task, which does not wait any more.
        self._starting = self._pending = None
        if failure is not None:
            self._give_up(order, failure)
        else:
            self._start(order, workers)

    def _start(self, order: RunOrder, workers: list[Prepared]) -> None:
        self.marks.begin(order)
        if self.preloader is not None and self.preloader.is_importing:
            self._held = workers
            held = self._hold(self.preloader, order, workers)
            self._starting = order, self.tasks.create_task(held)
        else:
            self._start_all(order, workers)

    async def _hold(self, preloader: Preloader, order: RunOrder, workers: list[Prepared]) -> None:
        await preloader.wait()
        # No stop after this cancels the task, which does not wait any more.
        self._starting = self._held = None
        self._start_all(order, workers)

    def _start_all(self, order: RunOrder, workers: list[Prepared]) -> None:
        """Start the workers of a round, in rank order."""
        for local_rank, worker in enumerate(workers):
            if worker.request is None or worker.output is None:
                self.refuse(order, local_rank, worker.refusal)
                continue
            with worker.output as output:
                try:
                    request = worker.request
                    if self.preloader is not None:
                        request = self.preloader.choose(request)
                    self.spawn(order, local_rank, request, output)
                except (OSError, WorkerHostError, ValueError) as error:
                    # ValueError: the text of a plug-in cannot be encoded, or exceeds a frame.
                    self.refuse(order, local_rank, f"cannot start a worker: {error}")
        self.outputs.log_folder()
        self.began(order)

    def _give_up(self, order: RunOrder, error: OSError) -> None:
        """Start no worker, because files cannot be made; tell whether the machine is to blame."""
        if error.errno in MACHINE_ERRORS:
            self.unprepared(order, f"it cannot make the files of its workers: {error}")
        else:
            self._refuse_all(order, f"cannot start a worker: {error}")

    def _refuse_all(self, order: RunOrder, text: str) -> None:
        for local_rank in range(order.assignment.local_world_size):
            self.refuse(order, local_rank, text)

    # --- in the thread for files ---

    def _prepare(
        self,
        order: RunOrder,
        ours: Variables,
        answer: PluginAnswer | None,
        loop: asyncio.AbstractEventLoop,
    ) -> list[Prepared]:
        """Return the workers of a round, by local rank, with their files.

        Raises:
            OSError: the folders cannot be made, or the machine lacks what it takes to make files.
        """
        changed: dict[int, dict[str, str]] = {}
        if answer is not None:
            changed, destinations = answer.environments, answer.destinations
            self.outputs.reify = lambda _: destinations
        self.outputs.begin(order)
        if self.outputs.folder.is_temporary and self.outputs.folder.path is not None:
            self.own.note_logs(self.outputs.folder.path)
        workers: list[Prepared] = []
        try:
            for local_rank in range(order.assignment.local_world_size):
                envs = changed.get(local_rank, {})
                workers.append(self._prepare_worker(order, local_rank, ours, envs, loop))
        except OSError:
            _close_all(workers)
            raise
        return workers

    def _prepare_worker(
        self,
        order: RunOrder,
        local_rank: int,
        ours: Variables,
        changed: Mapping[str, str],
        loop: asyncio.AbstractEventLoop,
    ) -> Prepared:
        # ValueError: a plug-in returned text that this system cannot encode.
        output: WorkerOutput | None = None
        try:
            output = self.outputs.open(order, local_rank, loop)
            if self.plugin is not None and output.error_file:  # it may name one file in each round
                output.stale_error = read_stamp(Path(output.error_file))
            request = self._request(order, local_rank, output, ours, changed)
        except (OSError, ValueError) as error:
            if output is not None:
                output.close()
            if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
                raise
            return Prepared(refusal=f"cannot start a worker: {error}")
        return Prepared(request, output)

    def _request(
        self,
        order: RunOrder,
        local_rank: int,
        output: WorkerOutput,
        ours: Variables,
        changed: Mapping[str, str],
        files: WorkerFiles | None = None,
    ) -> SpawnRequest:
        python = find_python(self.environment)
        files = files or self._files(order, local_rank, output.error_file)
        environment = self._environment(order, local_rank, files, self.environment, ours)
        return SpawnRequest(
            worker_id=worker_id(order.number, local_rank),
            argv=worker_command(
                self.launch, python=python, round=order.number, local_rank=local_rank
            ),
            env={**environment, **changed},
            cwd=find_folder(),
            stdout_fd=output.stdout_fd,
            stderr_fd=output.stderr_fd,
            is_forked=self.launch.function is not None and self.launch.function.is_forked,
            cpus=self.launch.cpus_of(local_rank),
        )

    def sample(self, order: RunOrder, local_rank: int) -> SpawnRequest:
        """Return the request of a worker, without files and destinations of its output."""
        ours, nowhere = tuple(self.variables()), WorkerOutput(error_file="")
        return self._request(order, local_rank, nowhere, ours, {}, WorkerFiles("", "", ""))

    def _added_environments(self, order: RunOrder, ours: Variables) -> dict[int, dict[str, str]]:
        ranks = range(order.assignment.local_world_size)
        return {rank: self._added_environment(order, rank, ours) for rank in ranks}

    def _added_environment(
        self, order: RunOrder, local_rank: int, ours: Variables
    ) -> dict[str, str]:
        """Return the variables that a worker does not inherit, without the plug-in's own."""
        files = self._files(order, local_rank, error_file="")
        added = self._environment(order, local_rank, files, {}, ours)
        names = added.keys() - {"TORCHELASTIC_ERROR_FILE"}
        environment = self._environment(order, local_rank, files, self.environment, ours)
        return {name: environment[name] for name in sorted(names)}

    def _files(self, order: RunOrder, local_rank: int, error_file: str) -> WorkerFiles:
        return WorkerFiles(
            error=error_file,
            notices=str(notice_file(self.own.path(), order.number)),
            server=self.own.socket_path(order.number, local_rank),
            marks=self.marks.path(),
        )

    def _environment(
        self,
        order: RunOrder,
        local_rank: int,
        files: WorkerFiles,
        parent: Mapping[str, str],
        ours: Variables,
    ) -> dict[str, str]:
        return worker_environment(
            parent,
            order,
            local_rank=local_rank,
            job_id=self.job_id,
            files=files,
            virtual_local_rank=self.launch.virtual_local_rank,
            limits_threads=self.launch.limits_threads,
            master_addr=self.launch.master_addr,
            ours=ours,
        )


def find_folder() -> str:
    """Return the working folder; empty if it was removed, so that only the helper can enter it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _close_all(workers: list[Prepared]) -> None:
    for worker in workers:
        if worker.output is not None:
            worker.output.close()


def worker_id(round: int, local_rank: int) -> int:
    """Return a number that no other worker of this agent has."""
    return round * _WORKERS_MAX + local_rank
