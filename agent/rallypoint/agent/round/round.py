"""One held round of this node: owns its workers from their start until nothing of them is left.

The round decides nothing. It carries out what the core wants, and reports what becomes of it: a
worker that the helper has started, its failure, its exit, the end of the sweep.

Start. A plug-in for logs, if there is one, first assigns where each worker writes. Then a thread
makes the folders and opens the files. Last, the event loop asks the helper for all workers.

Signals.
  * A worker that still starts gets each signal once, as soon as it runs, as the kernel would do.
  * Notices are written before a later signal is sent: the handler of a worker finds them. Signals
    keep their order meanwhile: the SIGTERM at the end of a drain follows its signal.
  * Before the first signal to the groups, each worker is looked at: what it does afterwards, it
    does because of the signal.

End. A sweep ends once nothing is left and every exit was reported. The core lets go of the round
then: a later report would be dropped, perhaps the culprit's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.evidence.hook import armed
from rallypoint.agent.evidence.target import Target
from rallypoint.agent.helper.events import Exited, Spawned, SpawnFailed, SpawnRequest
from rallypoint.agent.helper.frames import ARMED_ENV
from rallypoint.agent.helper.host import WorkerHostError
from rallypoint.agent.node_workers import SWEEP_LIMIT_MS
from rallypoint.agent.output.outputs import WorkerOutput
from rallypoint.agent.round.exits import Worker, list_targets
from rallypoint.agent.round.parts import NodeParts
from rallypoint.agent.round.requests import (
    MACHINE_ERRORS,
    Prepared,
    WorkerRequests,
    close_all,
)
from rallypoint.agent.torchelastic.error_watch import ErrorFile, Found
from rallypoint.agent.torchelastic.logs_plugin import LogsPlugin, LogsPluginError
from rallypoint.base.file_thread import Pending
from rallypoint.base.log import get_logger

log = get_logger()

DOING = "making the folders and files of a round"
PATIENCE_S = 0.01
"""How long a start blocks the event loop, at most: a file system that answers at once costs no turn
of the loop, in which a built-in coordinator or the log may have much to do."""


class Round:
    """The workers of one round on this node."""

    def __init__(self, parts: NodeParts, order: RunOrder | None = None) -> None:
        """Announce it; `begin` starts its workers.

        Args:
            parts: what the node has.
            order: the round and the node's place in it; None: no round was ordered yet. Then there
                is nothing to start, but a sweep may come.
        """
        self._parts = parts
        self._order = order
        self.number = 0 if order is None else order.number
        self.workers: dict[int, Worker] = {}
        """By worker id, until their exit."""
        self._changed = asyncio.Event()
        """Set when a worker has ended."""

        self.is_starting = order is not None
        """True until its workers are requested from the helper, or refused."""
        self._is_begun = False
        self._preparation: asyncio.Task[None] | None = None
        self._pending: Pending[list[Prepared]] | None = None
        """What the thread for files prepares."""
        self._held: list[Prepared] | None = None
        """Workers that wait until they can be forked."""

        self._early: list[tuple[int, bool]] = []
        """Signals to workers that the helper does not know yet, and whether each is for them
        alone."""
        self._last_signal: asyncio.Task[None] | None = None
        """Sends the latest signal that had to wait; later ones follow it."""

        self._sweep_token = 0
        """Token of the sweep; 0 before and after it."""
        self._is_clean = False
        """Nothing is left of what the sweep kills."""
        self._is_over = False
        """The sweep has ended."""
        self._reporting = 0
        """Exits whose reports are being composed; that takes 2 s at most."""

    @property
    def is_announced(self) -> bool:
        """True until `begin`, unless it was stopped before."""
        return self.is_starting and not self._is_begun

    # --- the start ---

    def begin(self, environment: Mapping[str, str]) -> None:
        """Start its workers, in rank order, once their files are prepared.

        Args:
            environment: what they inherit, with the mark by which leftovers are found.
        """
        assert self._order is not None
        self._is_begun, parts = True, self._parts
        parts.helper.is_used = True
        requests = WorkerRequests(parts, self._order, environment)
        if parts.plugin is not None:
            asked = self._ask_and_start(parts.plugin, requests)
            self._preparation = parts.tasks.create_task(asked)
            return
        try:
            pending = parts.files.begin(partial(requests.prepare, None))
            workers = pending.result() if pending.has_returned(PATIENCE_S) else None
        except OSError as error:
            self._give_up(error)
            return
        if workers is not None:
            self._start(workers)
        else:
            self._pending = pending
            self._preparation = parts.tasks.create_task(self._await_and_start(pending))

    def _stop_starting(self) -> None:
        """Start no worker of a round that was stopped before its files were prepared."""
        if not self.is_starting or self._parts.is_wanted(self.number):
            return
        if self._preparation is not None:
            self._preparation.cancel()
        if self._pending is not None:
            self._parts.files.drop(self._pending, close_all)
        if self._held is not None:
            close_all(self._held)
        self._preparation = self._pending = self._held = None
        self._refuse_all("the round was stopped before its workers started")

    async def _ask_and_start(self, plugin: LogsPlugin, requests: WorkerRequests) -> None:
        files = self._parts.files
        try:
            answer = await plugin.ask(await files.run(DOING, requests.added_environments))
            pending = files.begin(partial(requests.prepare, answer))
        except LogsPluginError as error:
            self._refuse_all(str(error))
        except OSError as error:
            self._give_up(error)
        else:
            self._pending = pending
            await self._await_and_start(pending)

    async def _await_and_start(self, pending: Pending[list[Prepared]]) -> None:
        failure: OSError | None = None
        try:
            workers = await self._parts.files.wait(DOING, pending)
        except OSError as error:
            failure = error
        # No stop after this cancels the task, which does not wait any more.
        self._preparation = self._pending = None
        if failure is not None:
            self._give_up(failure)
        else:
            self._start(workers)

    def _start(self, workers: list[Prepared]) -> None:
        assert self._order is not None
        parts = self._parts
        parts.marks.begin(self._order)
        if parts.preloader is not None and parts.preloader.is_importing:
            self._held = workers
            self._preparation = parts.tasks.create_task(self._start_forked(workers))
        else:
            self._start_all(workers)

    async def _start_forked(self, workers: list[Prepared]) -> None:
        assert self._parts.preloader is not None
        await self._parts.preloader.wait()
        # No stop after this cancels the task, which does not wait any more.
        self._preparation = self._held = None
        self._start_all(workers)

    def _start_all(self, workers: list[Prepared]) -> None:
        """Request the workers from the helper, in rank order."""
        assert self._order is not None
        self.is_starting = False
        for local_rank, worker in enumerate(workers):
            if worker.request is None or worker.output is None:
                self._refuse(local_rank, worker.refusal)
                continue
            with worker.output as output:
                try:
                    self._spawn(local_rank, worker.request, output)
                except (OSError, WorkerHostError, ValueError) as error:
                    # ValueError: the text of a plug-in cannot be encoded, or exceeds a frame.
                    self._refuse(local_rank, f"cannot start a worker: {error}")
        self._parts.outputs.log_folder()
        self._parts.began(self._order)
        early, self._early = self._early, []
        for signum, is_alone in early:  # the helper has the requests by now
            (self.forward if is_alone else self.signal)(signum)

    def _spawn(self, local_rank: int, request: SpawnRequest, output: WorkerOutput) -> None:
        parts = self._parts
        if parts.preloader is not None:
            request = parts.preloader.choose(request)
        parts.helper.is_used = True  # the helper may have been replaced since the start
        parts.helper.host.spawn(armed(request))
        file = None
        if output.error_file:
            file = ErrorFile(output.error_file, output.stale_error, time.monotonic_ns())
            parts.errors.watch(request.worker_id, file)
        worker = Worker(self.number, local_rank, output, file)
        worker.armed = request.env.get(ARMED_ENV, "")
        self.workers[request.worker_id] = worker

    def _give_up(self, error: OSError) -> None:
        """Start no worker, because files cannot be made; tell whether the machine is to blame."""
        if error.errno not in MACHINE_ERRORS:
            self._refuse_all(f"cannot start a worker: {error}")
            return
        self.is_starting = False
        text = f"it cannot make the files of its workers: {error}"
        then = "the node leaves the round, and retries until it can"
        log.warning("files_not_made", round=self.number, why=text, then=then)
        self._parts.post(inputs.WorkersNotPrepared(self.number, text))

    def _refuse_all(self, text: str) -> None:
        assert self._order is not None
        self.is_starting = False
        for local_rank in range(self._order.assignment.local_world_size):
            self._refuse(local_rank, text)

    def _refuse(self, local_rank: int, text: str) -> None:
        self._parts.post(inputs.WorkerNotStarted(self.number, local_rank, text))

    # --- signals ---

    def signal(self, signum: int) -> None:
        """Signal the process group of every worker; its handler finds the notices written.

        A worker that still starts gets the signal once, as soon as it runs.
        """
        self._look_at_imports()
        self._stop_starting()
        if self._is_early(signum, is_alone=False):
            return
        fresh = [worker for worker in self.workers.values() if not worker.is_signalled]
        for worker in fresh:
            worker.is_signalled = True
        has_files = any(worker.output.is_file for worker in fresh)
        if self._has_waiting_signal or self._parts.notices.is_writing or has_files:
            self._send_later(signum, fresh, is_alone=False)
            return
        for worker in fresh:
            worker.look()
        self._send(signum, is_alone=False)

    def forward(self, signum: int) -> None:
        """Signal the process of every live worker, but not the processes that it started.

        The children of a data loader would die of a signal that only their parent handles.
        """
        if self._is_early(signum, is_alone=True):
            return
        if self._has_waiting_signal:
            self._send_later(signum, (), is_alone=True)
        else:
            self._send(signum, is_alone=True)

    @property
    def _has_waiting_signal(self) -> bool:
        return self._last_signal is not None and not self._last_signal.done()

    def _send(self, signum: int, *, is_alone: bool) -> None:
        self._parts.helper.request(lambda host: host.signal(signum, alone=is_alone))

    def _send_later(self, signum: int, fresh: Sequence[Worker], *, is_alone: bool) -> None:
        waiting = self._send_in_turn(self._last_signal, signum, fresh, is_alone=is_alone)
        self._last_signal = self._parts.tasks.create_task(waiting)

    async def _send_in_turn(
        self,
        before: asyncio.Task[None] | None,
        signum: int,
        fresh: Sequence[Worker],
        *,
        is_alone: bool,
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._parts.exits.look(fresh)
        if not is_alone:
            await self._parts.notices.written()
        if not self._is_over:  # else no process is left of the workers that it was meant for
            self._send(signum, is_alone=is_alone)

    def _is_early(self, signum: int, *, is_alone: bool) -> bool:
        if not self.is_starting:
            return False
        if (signum, is_alone) not in self._early:
            self._early.append((signum, is_alone))
        return True

    # --- what becomes of its workers ---

    def on_event(self, event: Spawned | SpawnFailed | Exited) -> None:
        """Report what the helper says about one of its workers."""
        parts = self._parts
        match event:
            case Spawned(worker_id=worker_id, pid=pid):
                local_rank = self.workers[worker_id].local_rank
                self.workers[worker_id].pid = pid
                try:
                    parts.exits.started(pid, local_rank)
                finally:  # also with a bug in an observer, the core has to stop this worker
                    parts.post(inputs.WorkerStarted(self.number, local_rank, pid))
            case SpawnFailed(worker_id=worker_id, message=message):
                if parts.preloader is not None and parts.preloader.start_cold(
                    event, is_wanted=parts.is_wanted(self.number)
                ):
                    return
                place = self.number, self._forget(worker_id).local_rank
                parts.post(inputs.WorkerNotStarted(*place, message, event.is_missing))
            case Exited(worker_id=worker_id):
                worker = self._forget(worker_id)
                self._reporting += 1
                parts.tasks.create_task(self._report(worker, event))

    def report_found(self, found: Found) -> None:
        """Report the error that one of its workers has recorded; the exit follows."""
        self._parts.exits.report_found(self.workers[found.key], found)

    async def _report(self, worker: Worker, event: Exited) -> None:
        try:
            await self._parts.exits.report(worker, event)
        finally:
            self._reporting -= 1
            self._finish_sweep()

    def targets(self) -> list[Target]:
        """Return its live workers, for a look at what they do."""
        return [] if self._order is None else list_targets(self._order, self.workers)

    def _forget(self, worker_id: int) -> Worker:
        if not self._sweep_token:
            self._look_at_imports()
        self._parts.errors.forget(worker_id)
        self._changed.set()
        return self.workers.pop(worker_id)

    def _look_at_imports(self) -> None:
        """Let the forkserver look at its files while workers end, not when the next ones start."""
        if self._parts.preloader is not None:
            self._parts.preloader.look()

    # --- the end ---

    async def ended(self) -> None:
        """Wait until no worker runs."""
        while self.workers:
            self._changed.clear()
            await self._changed.wait()

    def sweep(self, token: int) -> None:
        """Kill every process that the workers started; `Swept` answers, after every exit."""
        self._look_at_imports()
        self._stop_starting()
        self._sweep_token, self._is_clean = token, False
        helper = self._parts.helper
        helper.is_sweeping = True
        if helper.is_gone:  # nothing is left
            asyncio.get_running_loop().call_soon(self.note_clean)
            return
        helper.request(lambda host: host.sweep(token, SWEEP_LIMIT_MS))

    def note_clean(self) -> None:
        """Note that the sweep, if there is one, has left nothing below the helper."""
        self._is_clean, self._parts.helper.is_used = bool(self._sweep_token), False
        self._finish_sweep()

    def _finish_sweep(self) -> None:
        if self._is_clean and not self._reporting:
            token, self._sweep_token, self._is_clean = self._sweep_token, 0, False
            self._parts.helper.is_sweeping, self._is_over = False, True
            self._parts.folders.end_round(self.number)
            self._parts.post(inputs.Swept(token))
