"""Owns the workers of the round that the node holds: starts, signals and sweeps them.

The supervisor decides nothing. The core sends it requests, and gets events of the helper as inputs.
See launching.py for how workers start, and exits.py for how an exit is reported.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import Notice, RunOrder
from rallypoint.agent.helper.events import (
    ORPHANS,
    Blocked,
    Clean,
    Exited,
    HelperLost,
    HostEvent,
    Spawned,
    SpawnFailed,
    SpawnRequest,
    Swept,
)
from rallypoint.agent.helper.host import HelperIrreplaceable, WorkerHost, WorkerHostError
from rallypoint.agent.node_workers import SWEEP_LIMIT_MS
from rallypoint.agent.output.outputs import WorkerOutput, WorkerOutputs
from rallypoint.agent.torchelastic.error_watch import ErrorFile, ErrorWatch, Found
from rallypoint.agent.torchelastic.logs_plugin import LogsPlugin
from rallypoint.agent.workers.environ import Launch
from rallypoint.agent.workers.exits import ExitReports, Worker, new_observers
from rallypoint.agent.workers.helper_watch import HelperWatch
from rallypoint.agent.workers.launching import Launcher
from rallypoint.agent.workers.marks import MarkPipe
from rallypoint.agent.workers.notices import NoticeWriter
from rallypoint.agent.workers.own_folder import Folders, OwnFolder
from rallypoint.agent.workers.signals.delivery import Delivery
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger

if TYPE_CHECKING:  # a node that preloads nothing loads nothing of it
    from rallypoint.agent.preload.command import Preload, Shape
    from rallypoint.agent.preload.preloader import Preloader

log = get_logger()

CHECK_S_MAX = 30.0
"""How long an attempt to make folders waits for the file system."""


class Supervisor:
    """The workers of one node."""

    def __init__(
        self,
        *,
        host: WorkerHost,
        launch: Launch,
        job_id: str,
        environment: Mapping[str, str],
        variables: Callable[[], tuple[tuple[str, str], ...]],
        post: Callable[[inputs.Input], None],
        tasks: asyncio.TaskGroup,
        outputs: WorkerOutputs,
        plugin: LogsPlugin | None = None,
        preload: tuple[Preload, Shape, RunOrder] | None = None,
        is_wanted: Callable[[int], bool] = lambda number: True,
        began: Callable[[RunOrder], None] = lambda order: None,
    ) -> None:
        """Begin without workers.

        Args:
            host: the helper process.
            launch: the command line of a worker.
            job_id: the job, for its workers.
            environment: what workers inherit, with the mark by which leftovers are found.
            variables: further variables of ours, as they are when a round starts.
            post: takes inputs of the core, in the event loop.
            tasks: runs what takes time.
            outputs: where the workers' output goes.
            plugin: assigns where the workers of a round write; None: `outputs` does.
            preload: what is preloaded, the shape of the workers' command line, and an order that
                stands for those of all rounds; None: nothing.
            is_wanted: tells whether a round still has to start or keep running.
            began: learns that the workers of a round were requested.
        """
        self.host = host
        self.post = post
        self.outputs = outputs
        self.tasks = tasks
        self.plugin = plugin
        self._workers: dict[int, Worker] = {}
        """By worker id, until their exit."""
        self._changed = asyncio.Event()
        """Set when a worker has ended."""
        self._number = 0
        """Number of the last round."""
        self._sweep_token = 0
        """Token of the current sweep; 0 without one."""
        self._is_clean = False
        """Nothing is left of what the current sweep kills."""
        self._reporting = 0
        """Exits whose reports are being composed; that takes 2 s at most."""
        self._is_hostless = False
        """The helper is lost, and cannot be replaced."""
        self._is_used = False
        """Something may run below the helper: from the start of a round until it is swept."""
        self._fence_at_ms: int | None = None
        """When the helper kills everything, by the monotonic clock; None: never."""
        self._watch = HelperWatch(
            lambda: self.host, post, lambda: bool(self._sweep_token), lambda: self._is_used
        )
        # Several threads, because a file system may stand still, and each call waits for the last.
        self._began = began
        self._is_wanted = is_wanted
        self._has_swept_folders = False
        self._files = FileThread("files")
        self._own_files = FileThread("own files")
        self._own = OwnFolder(lambda: outputs.folder.path)
        self._notices = NoticeWriter(self._own, self._own_files, tasks)
        self._folders = Folders(outputs, self._files, self._own, self._own_files)
        self._exits = ExitReports(
            post=post,
            files=self._files,
            observers=new_observers(environment, self._own, self._own_files, lambda: self.host.pid),
        )
        self._errors = ErrorWatch(FileThread("error files"), tasks, self._on_error_found)
        self._launcher = Launcher(
            launch=launch,
            job_id=job_id,
            environment=environment,
            variables=lambda: (*variables(), *self._exits.variables().items()),
            tasks=tasks,
            outputs=outputs,
            own=self._own,
            plugin=plugin,
            is_wanted=is_wanted,
            spawn=self._spawn,
            refuse=lambda order, *why: post(inputs.WorkerNotStarted(order.number, *why)),
            unprepared=self._on_unprepared,
            files=self._files,
            began=self._on_began,
            marks=MarkPipe(self._own.path, post),
        )
        self._signals = Delivery(
            send=lambda signum, alone: self._request(lambda: self.host.signal(signum, alone=alone)),
            is_starting=lambda: self._launcher.is_starting,
            workers=self._workers,
            exits=self._exits,
            notices=self._notices,
            tasks=tasks,
        )
        self._preloader: Preloader | None = None
        if preload is not None:
            self._preloader = self._launcher.preloader = self._new_preloader(*preload)

    def _new_preloader(self, preload: Preload, shape: Shape, order: RunOrder) -> Preloader:
        from rallypoint.agent.preload.preloader import Preloader

        consoles = self.outputs.consoles
        err = consoles.err.fd
        return Preloader(
            preload=preload,
            shape=shape,
            inherited=self._launcher.environment,
            sample=lambda: (self._launcher.sample(order, 0), self.outputs.terminals(order, 0)),
            terminal_fd=err if os.isatty(err) else consoles.out.fd,
            host=lambda: self.host,
            record=lambda: str(self._own.path() / "imports"),
            tasks=self.tasks,
        )

    async def begin(self) -> None:
        """Start the plug-in for logs, listen to the helper, and start the observers.

        Raises:
            TimerFileRefused: timers are enabled, but their FIFO cannot be made.
        """
        if self.plugin is not None:
            await self.plugin.begin()
        self.attach()
        await self._exits.begin()

    def attach(self) -> None:
        """Begin to listen to the helper."""
        self.host.attach(self._on_event)
        self._watch.begin()
        if self._preloader is not None:
            self._preloader.begin()

    def _look(self) -> None:
        """Let the forkserver look at its files while workers end, not when the next ones start."""
        if self._preloader is not None:
            self._preloader.look()

    @property
    def is_starting(self) -> bool:
        """True while the files of a round are prepared; its workers start then."""
        return self._launcher.is_starting

    # --- requests of the core ---

    def start(self, order: RunOrder) -> None:
        """Start the workers of a round, in rank order, once their files are prepared."""
        self._number = order.number
        self._is_used = True
        self._signals.begin(order.number)
        self._launcher.start(order)

    def signal(self, signum: int) -> None:
        """Signal the process group of every worker; its handler finds the notices written.

        A worker that still starts gets the signal once, as soon as it runs.
        """
        self._look()
        self._launcher.stop()
        self._signals.signal(signum)

    def forward(self, signum: int) -> None:
        """Signal the process of every live worker, but not the processes that it started."""
        self._signals.forward(signum)

    def tell(self, number: int, notices: Sequence[Notice], node_name: str) -> None:
        """Write `notices` to the notice file of a round; an empty list removes the file."""
        self._notices.write(number, notices, node_name)

    async def notices_written(self) -> None:
        """Wait until the last notices are written, for a moment at most."""
        await self._notices.written()

    def sweep(self, token: int) -> None:
        """Kill every process that the workers started; `Swept` answers, after every exit."""
        self._look()
        self._launcher.stop()
        self._sweep_token, self._is_clean = token, False
        if self._is_hostless:  # nothing is left
            asyncio.get_running_loop().call_soon(self._note_clean)
            return
        self._request(lambda: self.host.sweep(token, SWEEP_LIMIT_MS))

    def arm_fence(self, at_ms: int) -> None:
        """Let everything be killed at this monotonic time, whether agent or helper fails by then.

        A later call moves that time.
        """
        self._fence_at_ms = at_ms
        self._watch.arm(at_ms)
        self._request(lambda: self.host.arm_fence(at_ms))

    async def check_files(self, workers: int) -> None:
        """Find out whether the folders and files of so many workers can be made.

        Raises:
            OSError: they cannot, or the file system does not answer.
        """
        try:
            async with asyncio.timeout(CHECK_S_MAX):
                await self._folders.check(workers)
        except TimeoutError:
            raise OSError(f"the file system does not answer within {CHECK_S_MAX:g} s") from None

    async def end_workers(self, grace_s: float) -> None:
        """Stop the workers without the core: SIGTERM, and `grace_s` seconds for their ends."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                while self._workers:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("workers_survived_stop", within_s=grace_s, then="SIGKILL")

    def parts(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return what closes each part, in order.

        The helper ends all processes below it; then the workers' output is drained.
        """
        return (
            self._close_observers,
            self._close_watch,
            self._close_host,
            *(() if self._preloader is None else (self._preloader.close,)),
            self.outputs.finish,
            self._folders.close_logs,
            self._folders.remove_own,
        )

    async def _close_observers(self) -> None:
        self._errors.close()
        self._exits.close()
        self._launcher.marks.close()

    async def _close_watch(self) -> None:
        self._watch.close()

    async def _close_host(self) -> None:
        await self.host.close()

    # --- the helper ---

    def _spawn(
        self, order: RunOrder, local_rank: int, request: SpawnRequest, output: WorkerOutput
    ) -> None:
        self._is_used = True  # the helper may have been replaced since the start
        self.host.spawn(request)
        file = None
        if output.error_file:
            file = ErrorFile(output.error_file, output.stale_error, time.monotonic_ns())
            self._errors.watch(request.worker_id, file)
        self._workers[request.worker_id] = Worker(order.number, local_rank, output, file)

    def _is_taken(self, event: HostEvent) -> bool:
        """Return whether an event is about a forkserver, or a worker that starts by itself now."""
        if self._preloader is None:
            return False
        if isinstance(event, SpawnFailed) and event.worker_id in self._workers:
            is_wanted = self._is_wanted(self._workers[event.worker_id].round)
            return self._preloader.start_cold(event, is_wanted=is_wanted)
        return self._preloader.takes(event)

    def _on_error_found(self, found: Found) -> None:
        self._exits.report_found(self._workers[found.key], found)

    def _on_unprepared(self, order: RunOrder, text: str) -> None:
        then = "the node leaves the round, and retries until it can"
        log.warning("files_not_made", round=order.number, why=text, then=then)
        self.post(inputs.WorkersNotPrepared(order.number, text))

    def _on_began(self, order: RunOrder) -> None:
        self._began(order)
        for signum, is_alone in self._signals.take_early():  # the helper has the requests by now
            (self.forward if is_alone else self.signal)(signum)
        if not self._has_swept_folders:  # after the first start, because no worker has to wait
            self._has_swept_folders = True
            self.tasks.create_task(self._folders.remove_dead())

    def _request(self, request: Callable[[], None]) -> None:
        """Send a request, or log that it failed: `_replace_host` then follows."""
        try:
            request()
        except WorkerHostError as error:
            log.warning("helper_request_failed", error=str(error))

    def _replace_host(self) -> None:
        """Start a new helper, once the old one and everything below it are gone.

        Raises:
            HelperIrreplaceable: the agent cannot run workers any more.
        """
        try:
            self.host = self.host.replacement()
        except HelperIrreplaceable:
            self._is_hostless = True
            self._note_clean()
            raise  # ends the agent
        self.host.attach(self._on_event)
        if self._fence_at_ms is not None:
            self.arm_fence(self._fence_at_ms)
        if self._preloader is not None:
            self._preloader.begin()
        self._note_clean()

    def _note_clean(self) -> None:
        """Note that the current sweep, if there is one, has left nothing."""
        self._is_clean, self._is_used = bool(self._sweep_token), False
        self._finish_sweep()

    def _finish_sweep(self) -> None:
        """End the sweep once nothing is left and every exit was reported.

        The core lets go of the round then: a later report would be dropped, perhaps the culprit's.
        """
        if self._is_clean and not self._reporting:
            token, self._sweep_token, self._is_clean = self._sweep_token, 0, False
            self._folders.end_round(self._number)
            self.post(inputs.Swept(token))

    async def _report(self, worker: Worker, event: Exited) -> None:
        try:
            await self._exits.report(worker, event)
        finally:
            self._reporting -= 1
            self._finish_sweep()

    def _forget(self, worker_id: int) -> Worker:
        if not self._sweep_token:
            self._look()
        self._errors.forget(worker_id)
        return self._workers.pop(worker_id)

    def _on_event(self, event: HostEvent) -> None:
        self._changed.set()
        if self._is_taken(event):
            return
        match event:
            case Spawned(worker_id=worker_id, pid=pid):
                worker = self._workers[worker_id]
                try:
                    self._exits.started(pid, worker.local_rank)
                finally:  # also with a bug in an observer, the core has to stop this worker
                    self.post(inputs.WorkerStarted(worker.round, worker.local_rank, pid))
            case SpawnFailed(worker_id=worker_id, message=message):
                worker = self._forget(worker_id)
                place = worker.round, worker.local_rank
                self.post(inputs.WorkerNotStarted(*place, message, event.is_missing))
            case Exited(worker_id=worker_id):
                worker = self._forget(worker_id)
                self._reporting += 1
                self.tasks.create_task(self._report(worker, event))
            case Clean(token=token) if token == ORPHANS:
                self._exits.swept()
                self._replace_host()
            case Clean():
                try:
                    self._exits.swept()
                finally:
                    self._note_clean()
            case Blocked(token=token, pids=pids):
                self.post(inputs.SweepBlocked(token, pids))
            case Swept(pids=pids):
                log.warning("leftovers_killed", pids=pids, why="their agent is dead")
            case HelperLost(pid=pid):
                then = "a new one starts" if self.host.is_replaceable else "the agent ends"
                log.error("helper_lost", pid=pid, then=f"its workers are dead; {then}")
