"""Starts, signals and sweeps the workers of the round that the node holds, and says what happens.

It decides nothing: the core says what to do, and gets back what the processes did.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rallypoint.agent.core import inputs
from rallypoint.agent.core.model import ErrorRecord, Notice, RunOrder
from rallypoint.agent.environ import Launch, WorkerFiles, worker_command, worker_environment
from rallypoint.agent.frames import FrameTooLarge
from rallypoint.agent.notices import notice_file, write_notices
from rallypoint.agent.oom import OomWatch
from rallypoint.agent.outputs import WorkerOutput, WorkerOutputs
from rallypoint.agent.process import SpawnRequest, WorkerHost, WorkerHostError
from rallypoint.agent.records import find_uncaught, read_error_file
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
    oom: OomWatch = field(default_factory=OomWatch.begin)
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _sweep_token: int = 0
    """Of the sweep that was asked for and not answered; 0 when none is open."""
    _fence_at_ms: int | None = None
    """When the helper kills everything, by the monotonic clock; None: never."""
    _folder: Path | None = None

    def attach(self) -> None:
        """Begin to listen to the helper process."""
        self.host.attach(self._on_event)

    def start(self, order: RunOrder) -> None:
        """Start the workers of a round, in rank order."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="rallypoint_"))
        try:
            self.outputs.begin(order)
        except OSError as error:
            for local_rank in range(order.local_world_size):
                self._tell_not_started(order, local_rank, error)
            return
        for local_rank in range(order.local_world_size):
            try:
                self._spawn(order, local_rank)
            except (OSError, WorkerHostError, FrameTooLarge) as error:
                self._tell_not_started(order, local_rank, error)

    def _tell_not_started(self, order: RunOrder, local_rank: int, error: Exception) -> None:
        text = f"cannot start a worker: {error}"
        self.post(inputs.WorkerNotStarted(order.number, local_rank, text))

    def _spawn(self, order: RunOrder, local_rank: int) -> None:
        assert self._folder is not None
        python = self.environment.get("PYTHON_EXEC") or sys.executable
        worker_id = _worker_id(order.number, local_rank)
        with self.outputs.open(order, local_rank) as output:
            notices = str(notice_file(self._folder, order.number))
            environment = worker_environment(
                self.environment,
                order,
                local_rank=local_rank,
                job_id=self.job_id,
                files=WorkerFiles(output.error_file, notices),
                ours=self.variables(),
            )
            self.host.spawn(
                SpawnRequest(
                    worker_id=worker_id,
                    argv=worker_command(self.launch, python=python, local_rank=local_rank),
                    env=environment,
                    cwd=os.getcwd(),
                    stdout_fd=output.stdout_fd,
                    stderr_fd=output.stderr_fd,
                )
            )
        self._workers[worker_id] = _Worker(order.number, local_rank, output)

    def signal(self, signum: int) -> None:
        """Signal the group of every worker that lives."""
        for worker in self._workers.values():
            self._note_last_words(worker)
        self._ask(lambda: self.host.signal(signum))

    def tell(self, number: int, notices: Sequence[Notice], node_name: str) -> None:
        """Let the workers of a round find `notices` in their notice file; none removes it."""
        assert self._folder is not None
        path = notice_file(self._folder, number)
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
        await self.host.close()
        self.oom.close()
        await self.outputs.finish()
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _on_event(self, event: HostEvent) -> None:
        match event:
            case Spawned(worker_id=worker_id, pid=pid):
                worker = self._workers[worker_id]
                self.oom.started(pid)
                self.post(inputs.WorkerStarted(worker.round, worker.local_rank, pid))
            case SpawnFailed(worker_id=worker_id, message=message):
                worker = self._workers.pop(worker_id)
                self.post(inputs.WorkerNotStarted(worker.round, worker.local_rank, message))
            case Exited(worker_id=worker_id):
                worker = self._workers.pop(worker_id)
                self.tasks.create_task(self._report_exit(worker, event))
            case Clean(token=token) if token == ORPHANS:
                self._replace_host()
            case Clean(token=token):
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
        signum = event.signal
        if event.exit_code is None and signum is None:
            signum = 9  # the helper died, and the parent-death signal took its workers
        worker.output.hurry()
        if event.exit_code != 0:
            await worker.output.wait_end(TAIL_WAIT_S)
        # While a sweep is on SIGKILL is ours.
        is_suspect = event.signal == signal.SIGKILL and not self._sweep_token
        oom_killed = self.oom.ended(event.pid, is_suspect=is_suspect)
        path = worker.output.error_file if event.exit_code != 0 else ""
        error = read_error_file(Path(path), ended_s) if path else None
        if error is None and worker.uncaught is not None:
            age_ms = (seen_ns - worker.uncaught_ns) // 1_000_000
            error = replace(worker.uncaught, before_exit_ms=max(0, age_ms))
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
            )
        )


def _worker_id(round: int, local_rank: int) -> int:
    """Return a number that no other worker of this agent has."""
    return round * _WORKERS_MAX + local_rank
