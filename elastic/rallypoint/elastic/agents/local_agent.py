"""An agent whose workers are processes on this machine, run by the supervisor of `node-agent`.

A helper process is the parent of all workers: nothing outlives the agent, not even when the
interpreter is killed.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rallypoint.agent.torchelastic.variables import SWITCH_ENV, TIMERS_ENV
from rallypoint.base.needs import find_kernel_lack, find_limit
from rallypoint.elastic.agents.simple_agent import SimpleElasticAgent
from rallypoint.elastic.logs import LogsSpecs
from rallypoint.elastic.metrics import prof
from rallypoint.elastic.node.coordinated import CoordinatedRendezvous
from rallypoint.elastic.rendezvous import RendezvousError
from rallypoint.elastic.values import RunResult, WorkerGroup, WorkerSpec, WorkerState
from rallypoint.wire.loading import load_grpc

if TYPE_CHECKING:
    from rallypoint.agent.helper.host import WorkerHost
    from rallypoint.agent.round.environ import Launch
    from rallypoint.elastic.functions import FunctionLaunch
    from rallypoint.elastic.node.local_seat import LocalSeat

TORCHELASTIC_ENABLE_FILE_TIMER, TORCHELASTIC_TIMER_FILE = SWITCH_ENV, TIMERS_ENV


class LocalElasticAgent(SimpleElasticAgent):
    """Runs the workers of one node as processes: a function, or a program."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
        health_check_server: Any = None,
        uninterruptible_state_timeout: float | None = None,
    ) -> None:
        """Prepare an agent; nothing starts before `run`.

        Args:
            spec: the workers.
            logs_specs: where their output goes.
            start_method: how a function starts: spawn, fork or forkserver.
            exit_barrier_timeout: seconds to wait for the outcome of the job, after all workers here
                have succeeded, while no coordinator answers.
            log_line_prefix_template: prefix of tee'd lines; knows ${role_name}, ${local_rank} and
                ${rank}.
            shutdown_timeout: seconds between a stop signal and SIGKILL.
            health_check_server: ignored, as in torch's public releases.
            uninterruptible_state_timeout: ignored: the coordinator learns of processes that
                survive SIGKILL.
        """
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout)
        self._start_method = start_method
        self._logs_specs = logs_specs
        self._log_line_prefix_template = log_line_prefix_template
        self._rdzv_handler = spec.rdzv_handler
        self._function: FunctionLaunch | None = None

    def _new_seat(self, handler: CoordinatedRendezvous) -> LocalSeat:
        # The helper process starts before gRPC is imported: what may fork does it before.
        launch, host = self._new_launch()
        try:
            load_grpc()
            from rallypoint.elastic.agents.local_launch import new_local_seat

            return new_local_seat(
                self._plan(handler),
                self._worker_group.spec,
                launch,
                host,
                self._logs_specs,
                self._log_line_prefix_template,
            )
        except BaseException:
            host.discard()
            raise

    def _new_launch(self) -> tuple[Launch, WorkerHost]:
        from rallypoint.agent.helper.host import WorkerHost
        from rallypoint.agent.helper.processes import open_missing_streams
        from rallypoint.agent.round.environ import Launch

        self._check_needs()
        open_missing_streams()
        entrypoint, args = self._worker_group.spec.entrypoint, self._worker_group.spec.args
        assert entrypoint is not None
        if isinstance(entrypoint, str):
            words = tuple(str(arg) for arg in args)
            return Launch(entrypoint, words, no_python=True), WorkerHost.launch()
        from rallypoint.elastic.functions import FunctionLaunch

        self._function = FunctionLaunch(entrypoint, args, self._start_method)
        return self._function.launch, self._function.host()

    def _check_needs(self) -> None:
        """Raise RendezvousError if this node lacks what an agent needs; see `base.needs`.

        Whether output is tee'd and a coordinator hosted is not known yet: both need a little more.
        """
        workers = self._worker_group.spec.local_world_size
        lack = find_kernel_lack() or find_limit(workers, is_teed=False, hosts=False)
        if lack:
            raise RendezvousError(lack)

    def _leave(self, sigval: signal.Signals | None) -> None:
        try:
            super()._leave(sigval)
        finally:
            if self._function is not None:
                self._function.close()
                self._function = None

    def _local(self) -> LocalSeat:
        from rallypoint.elastic.node.local_seat import LocalSeat

        seat = self._sit()
        assert isinstance(seat, LocalSeat)
        return seat

    @prof
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the workers; return their pids by local rank.

        The round may have been stopped meanwhile: then a worker that was not started has no pid.
        """
        from rallypoint.elastic.node.local_workers import RoundGone

        seat = self._local()
        with suppress(RoundGone):  # `num_nodes_waiting` makes the agent wait for the next one
            seat.begin()
        held = seat.view.taken
        return {} if held is None else {one.local_rank: one.pid for one in held.workers}

    @prof
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop the workers, and wait until no process of theirs is left."""
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Stop the workers, and wait until no process of theirs is left.

        Args:
            death_sig: the signal that they get.
            timeout: ignored: every stop has the agent's own timeout until SIGKILL.
        """
        if self._seat is not None and self._seat.has_begun:
            self._local().stop(death_sig)

    @prof
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Return the state of the workers, with values and failures by global rank."""
        from rallypoint.elastic.agents import outcomes

        seat = self._local()
        held = seat.view.taken
        if held is None:
            return RunResult(WorkerState.UNKNOWN)
        failures = outcomes.find_failures(held)
        if failures:
            return RunResult(WorkerState.FAILED, failures=failures)
        if not outcomes.has_succeeded(held):
            return RunResult(WorkerState.HEALTHY)
        ranks = {one.local_rank: one.global_rank for one in worker_group.workers}
        values: dict[int, Any] = dict.fromkeys(ranks)
        if self._function is not None:
            values = self._function.results(seat.number, ranks)
        return RunResult(
            WorkerState.SUCCEEDED,
            return_values={ranks[local_rank]: value for local_rank, value in values.items()},
        )

    def _find_failures(self, failed: RunResult) -> dict[int, Any]:
        from rallypoint.elastic.agents import outcomes

        held = self._sit().view.taken
        found = {} if held is None else outcomes.find_failures(held)
        return found or failed.failures
