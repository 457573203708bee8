"""Starts, signals and sweeps the workers of the round that the node holds, and says what happens.

It decides nothing: the core says what to do, and gets back what the processes did.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rallypoint.agent.core import inputs
from rallypoint.agent.core.model import ErrorRecord, Notice, RunOrder
from rallypoint.agent.environ import Launch, WorkerFiles, worker_command, worker_environment
from rallypoint.agent.notices import notice_file, write_notices
from rallypoint.agent.oom import OomWatch
from rallypoint.agent.output.outputs import WorkerOutput, WorkerOutputs
from rallypoint.agent.output.plugin import LogsPlugin, LogsPluginError, PluginAnswer
from rallypoint.agent.own_folder import OwnFolder
from rallypoint.agent.process import SpawnRequest, WorkerHost, WorkerHostError
from rallypoint.agent.records import find_uncaught, read_error_file
from rallypoint.agent.timers import Timers, timer_file
from rallypoint.agent.worker_events import (
    ORPHANS,
    Blocked,
    Clean,
    Exited,
    HelperLost,
    HostEvent,
    Spawned,
    SpawnFailed,
    Swept,
)
from rallypoint.wire.log import get_logger

log = get_logger()

SWEEP_LIMIT_MS = 5_000
"""What survives SIGKILL this long is reported as blocked."""
TAIL_WAIT_S = 0.05
"""How long the report of an exit waits for the rest of standard error."""
TEARDOWN_MS = 10_000
"""An error that was printed longer ago than this was survived, or its process hangs."""
_WORKERS_MAX = 1 << 16


@dataclass(slots=True)
class _Worker:
    round: int
    local_rank: int
    output: WorkerOutput
    uncaught: ErrorRecord | None = None
    """The error with which it was ending when it was signalled first."""
    uncaught_ns: int = 0
    """Monotonic time when it had written that."""
    is_signalled: bool = False


@dataclass(slots=True)
class Supervisor:
    """The workers of one node."""

    host: WorkerHost
    launch: Launch
    job_id: str
    environment: Mapping[str, str]
    """What workers inherit. Holds the mark by which a later agent finds what this one leaves."""
    variables: Callable[[], tuple[tuple[str, str], ...]]
    """Further variables of ours, as they are when a round starts."""
    post: Callable[[inputs.Input], None]
    """Takes what happens, in the event loop."""
    tasks: asyncio.TaskGroup
    outputs: WorkerOutputs
    plugin: LogsPlugin | None = None
    """Says where the output of a round goes; None: `outputs` does."""
    is_wanted: Callable[[int], bool] = lambda number: True
    """Tells whether a round that was begun is still to go on."""
    oom: OomWatch = field(default_factory=OomWatch.begin)
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _sweep_token: int = 0
    """Of the sweep that was asked for and not answered; 0 when none is open."""
    _fence_at_ms: int | None = None
    """When the helper kills everything, by the monotonic clock; None: never."""
    _own: OwnFolder = field(init=False)
    _timers: Timers = field(init=False)
    _asking: tuple[RunOrder, asyncio.Task[None]] | None = None
    """The round of which the plug-in was asked last."""

    def __post_init__(self) -> None:
        """Let the agent's own folder lie below the logs where it can lie nowhere else."""
        self._own = OwnFolder(lambda: self.outputs.folder.path)

    def attach(self) -> None:
        """Begin to listen to the helper process, and to timers where those are wanted.

        Raises:
            TimerFileRefused: the environment wants them where they cannot be.
        """
        self.host.attach(self._on_event)
        self._timers = Timers(lambda: self.host.pid)
        path = timer_file(self.environment, self._own.path)
        if path:
            self._timers.open(path)

    def start(self, order: RunOrder) -> None:
        """Start the workers of a round, in rank order; with a plug-in, when it has answered."""
        if self.plugin is None:
            self._start(order, None)
        else:
            self._asking = order, self.tasks.create_task(self._ask_and_start(self.plugin, order))

    async def _ask_and_start(self, plugin: LogsPlugin, order: RunOrder) -> None:
        ranks = range(order.local_world_size)
        try:
            answer = await plugin.ask({rank: self._our_environment(order, rank) for rank in ranks})
        except (LogsPluginError, OSError) as error:
            self._refuse(order, ranks, str(error))
        else:
            self._start(order, answer)

    def _stop_asking(self) -> None:
        """Start nothing of a round that was stopped while the plug-in was asked."""
        if self._asking is None or self._asking[1].done():
            return
        order, task = self._asking
        if not self.is_wanted(order.number):
            self._asking = None
            task.cancel()
            text = "the round was stopped before its workers started"
            self._refuse(order, range(order.local_world_size), text)

    def _start(self, order: RunOrder, answer: PluginAnswer | None) -> None:
        ranks = range(order.local_world_size)
        added: dict[int, dict[str, str]] = {}
        if answer is not None:
            added, destinations = answer.environments, answer.destinations
            self.outputs.reify = lambda _: destinations
        try:
            self.outputs.begin(order)
        except OSError as error:
            self._refuse(order, ranks, f"cannot start a worker: {error}")
            return
        for local_rank in ranks:
            try:
                self._spawn(order, local_rank, added.get(local_rank, {}))
            except (OSError, WorkerHostError, ValueError) as error:
                # ValueError: text that the system has no bytes for, as a plug-in may give it, or
                # more of it than a frame takes.
                self._refuse(order, (local_rank,), f"cannot start a worker: {error}")

    def _refuse(self, order: RunOrder, local_ranks: Iterable[int], text: str) -> None:
        for local_rank in local_ranks:
            self.post(inputs.WorkerNotStarted(order.number, local_rank, text))

    def _spawn(self, order: RunOrder, local_rank: int, added: Mapping[str, str]) -> None:
        python = self.environment.get("PYTHON_EXEC") or sys.executable
        worker_id = _worker_id(order.number, local_rank)
        with self.outputs.open(order, local_rank) as output:
            files = self._files(order, local_rank, output.error_file)
            environment = self._environment(order, local_rank, files, self.environment)
            self.host.spawn(
                SpawnRequest(
                    worker_id=worker_id,
                    argv=worker_command(self.launch, python=python, local_rank=local_rank),
                    env={**environment, **added},
                    cwd=os.getcwd(),
                    stdout_fd=output.stdout_fd,
                    stderr_fd=output.stderr_fd,
                    cpus=self.launch.cpus_of(local_rank),
                )
            )
        self._workers[worker_id] = _Worker(order.number, local_rank, output)

    def _our_environment(self, order: RunOrder, local_rank: int) -> dict[str, str]:
        """Return what of a worker's environment is from us, but for what a plug-in has to say."""
        files = self._files(order, local_rank, error_file="")
        names = self._environment(order, local_rank, files, {}).keys() - {"TORCHELASTIC_ERROR_FILE"}
        found = self._environment(order, local_rank, files, self.environment)
        return {name: found[name] for name in sorted(names)}

    def _files(self, order: RunOrder, local_rank: int, error_file: str) -> WorkerFiles:
        return WorkerFiles(
            error=error_file,
            notices=str(notice_file(self._own.path(), order.number)),
            server=self._own.socket_path(order.number, local_rank),
            timers=self._timers.path,
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

    def signal(self, signum: int) -> None:
        """Signal the group of every worker that lives."""
        self._stop_asking()
        for worker in self._workers.values():
            self._note_last_words(worker)
        self._ask(lambda: self.host.signal(signum))

    def forward(self, signum: int) -> None:
        """Signal every worker that lives, but nobody that it has started: the children of a data
        loader would die of a signal that only their parent handles."""
        self._ask(lambda: self.host.signal(signum, alone=True))

    def tell(self, number: int, notices: Sequence[Notice], node_name: str) -> None:
        """Let the workers of a round find `notices` in their notice file; none removes it."""
        path = notice_file(self._own.path(), number)
        try:
            write_notices(path, notices, node_name)
        except OSError as error:  # a full disk is no reason to end the workers
            log.warning("notices_not_written", path=str(path), error=str(error))

    def _note_last_words(self, worker: _Worker) -> None:
        """Note whether the worker was ending of an error of its own before it is signalled."""
        silent_ms = worker.output.silent_ms()
        if not worker.is_signalled and silent_ms < TEARDOWN_MS:
            worker.uncaught = find_uncaught(worker.output.tail())
            worker.uncaught_ns = time.monotonic_ns() - silent_ms * 1_000_000
        worker.is_signalled = True

    def sweep(self, token: int) -> None:
        """Kill everything that the workers started; the answer is `Swept`."""
        self._stop_asking()
        self._sweep_token = token
        self._ask(lambda: self.host.sweep(token, SWEEP_LIMIT_MS))

    def arm_fence(self, at_ms: int) -> None:
        """Let the helper kill everything at this instant of the monotonic clock, whatever becomes
        of the agent; a later call moves it."""
        self._fence_at_ms = at_ms
        self._ask(lambda: self.host.arm_fence(at_ms))

    def _ask(self, request: Callable[[], None]) -> None:
        """Ask the helper; when it is lost, so are its workers, and `_replace_host` goes on."""
        try:
            request()
        except WorkerHostError as error:
            log.warning("helper_unavailable", error=str(error))

    def _replace_host(self) -> None:
        """Start a new helper after the old one and everything below it are gone."""
        self.host = WorkerHost.launch()
        self.host.attach(self._on_event)
        if self._fence_at_ms is not None:
            self.arm_fence(self._fence_at_ms)
        if self._sweep_token:
            self.post(inputs.Swept(self._sweep_token))

    async def close(self) -> None:
        """End the helper, and with it whatever is left; let out what the workers wrote."""
        self._timers.close()
        await self.host.close()
        self.oom.close()
        await self.outputs.finish()
        await asyncio.to_thread(self._own.remove)

    def _on_event(self, event: HostEvent) -> None:
        match event:
            case Spawned(worker_id=worker_id, pid=pid):
                worker = self._workers[worker_id]
                self.oom.started(pid)
                self._timers.started(pid, worker.local_rank)
                self.post(inputs.WorkerStarted(worker.round, worker.local_rank, pid))
            case SpawnFailed(worker_id=worker_id, message=message):
                worker = self._workers.pop(worker_id)
                self.post(inputs.WorkerNotStarted(worker.round, worker.local_rank, message))
            case Exited(worker_id=worker_id):
                worker = self._workers.pop(worker_id)
                self.tasks.create_task(self._report_exit(worker, event))
            case Clean(token=token) if token == ORPHANS:
                self._timers.clear()
                self._replace_host()
            case Clean(token=token):
                self._timers.clear()
                self._sweep_token = 0
                self.post(inputs.Swept(token))
            case Blocked(token=token, pids=pids):
                self.post(inputs.SweepBlocked(token, pids))
            case Swept(pids=pids):
                log.warning("leftovers_of_a_dead_agent_killed", pids=pids)
            case HelperLost(pid=pid):
                log.error("helper_lost", pid=pid, then="its workers are dead; a new one starts")

    async def _report_exit(self, worker: _Worker, event: Exited) -> None:
        ended_s = time.time()  # noqa: TID251  # compared with the time of the error file
        seen_ns = time.monotonic_ns()
        expiry = self._timers.ended(event.pid)
        signum = event.signal
        if event.exit_code is None and signum is None:
            signum = 9  # the helper died, and the parent-death signal took its workers
        worker.output.hurry()
        if event.exit_code != 0:
            await worker.output.wait_end(TAIL_WAIT_S)
        # While a sweep is on SIGKILL is ours, and so it can be when a timer has expired.
        is_ours = self._sweep_token or expiry is not None
        is_suspect = event.signal == signal.SIGKILL and not is_ours
        oom_killed = self.oom.ended(event.pid, is_suspect=is_suspect)
        path = worker.output.error_file if event.exit_code != 0 else ""
        error = read_error_file(Path(path), ended_s) if path else None
        # A path may have bytes that are no text; the wire takes only text.
        told_path = os.fsencode(path).decode(errors="replace")
        error_file = told_path if error is not None else ""
        if error is None and worker.uncaught is not None:
            age_ms = (seen_ns - worker.uncaught_ns) // 1_000_000
            error = replace(worker.uncaught, before_exit_ms=max(0, age_ms))
        if expiry is not None and event.exit_code != 0:
            error = expiry.explain(error, signum=signum, seen_ns=seen_ns)
        failed_s = error.time_s if error is not None and error.time_s is not None else ended_s
        self.post(
            inputs.WorkerEnded(
                round=worker.round,
                local_rank=worker.local_rank,
                exit_code=event.exit_code,
                signal=signum,
                error=error,
                stderr_tail=worker.output.tail() if event.exit_code != 0 else "",
                ago_ms=(time.monotonic_ns() - seen_ns) // 1_000_000,
                oom_killed=oom_killed,
                failed_ms=int(failed_s * 1000),
                error_file=error_file,
            )
        )


def _worker_id(round: int, local_rank: int) -> int:
    """Return a number that no other worker of this agent has."""
    return round * _WORKERS_MAX + local_rank
