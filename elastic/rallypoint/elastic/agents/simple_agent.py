"""An agent for workers of any kind: a subclass starts, watches and stops them.

The coordinator decides when a round begins, and whether a failure restarts it. The agent follows:

    wait for a round   _rendezvous
    start              _start_workers
    watch              _monitor_workers, again and again; a change on the coordinator wakes it
    stop               _stop_workers, after a failure here or elsewhere, or when nodes join

Every method that a subclass may override runs in the thread that called `run`.
"""

from __future__ import annotations

import abc
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from rallypoint.agent.core.leaving.signals import DEFAULT_SIGNAL_NAMES
from rallypoint.elastic.agents.elastic_agent import DEFAULT_ROLE, RecordingAgent
from rallypoint.elastic.agents.signal_gate import SignalGate, parse_signals
from rallypoint.elastic.errors import SignalException
from rallypoint.elastic.events import EventSource
from rallypoint.elastic.metrics import prof
from rallypoint.elastic.node.coordinated import CoordinatedRendezvous
from rallypoint.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from rallypoint.elastic.values import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from rallypoint.wire.loading import load_grpc

if TYPE_CHECKING:
    from rallypoint.agent.launch.plan import LaunchPlan
    from rallypoint.elastic.node.seat import Seat

logger = logging.getLogger("rallypoint.elastic")


class SimpleElasticAgent(RecordingAgent):
    """Runs the workers of one role on one node.

    A subclass implements `_start_workers`, `_stop_workers`, `_monitor_workers` and `_shutdown`.
    """

    def __init__(
        self, spec: WorkerSpec, exit_barrier_timeout: float = 300, shutdown_timeout: int = 30
    ) -> None:
        """Prepare an agent; nothing starts before `run`.

        Args:
            spec: the workers.
            exit_barrier_timeout: seconds to wait for the outcome of the job, after all workers here
                have succeeded, while no coordinator answers.
            shutdown_timeout: seconds between a stop signal and SIGKILL.
        """
        self._worker_group = WorkerGroup(spec)
        self._remaining_restarts = spec.max_restarts
        self._store: Any = None
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._total_execution_time = 0
        self._in_exit_barrier = False
        self.signals_to_handle = DEFAULT_SIGNAL_NAMES
        """Names of the signals that end the agent, separated by commas."""
        self._seat: Seat | None = None
        self._failed: RunResult | None = None
        """What has failed in the current round on this node."""

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the workers of this node; the object changes while the agent runs."""
        return self._worker_group

    # --- what a subclass implements ---

    @abc.abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start all workers of the group; return the id of each by local rank."""

    @abc.abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop all workers of the group, in whatever state they are."""

    @abc.abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Return the state of the workers, with values and failures by global rank."""

    @abc.abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Free everything that the agent holds, workers included.

        Args:
            death_sig: the signal that running workers get.
            timeout: seconds until SIGKILL.
        """

    # --- the run ---

    @prof
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Take part in the job until it ends.

        Args:
            role: ignored, as by torch: an agent has one role, that of its specification.

        Returns:
            What became of the workers of this node, by global rank. STOPPED if the job did without
            this node: it was a spare until the end, or was drained.

        Raises:
            RendezvousError: the node could not take part to the end.
            SignalException: a signal has ended the agent, and its workers before.
        """
        start_s = time.monotonic()
        signals = SignalGate(parse_signals(self.signals_to_handle), lambda: self._seat)
        with signals.handling():
            sigval: signal.Signals | None = None
            try:
                try:
                    return self._take_part(role, start_s, signals)
                finally:
                    signals.hold()  # what follows frees the workers, files and processes
            except SignalException as error:
                sigval = error.sigval
                logger.warning("Received %s death signal, shutting down workers", sigval)
                raise
            finally:
                self._leave(sigval)
                self._total_execution_time = int(time.monotonic() - start_s)

    def _take_part(self, role: str, start_s: float, signals: SignalGate) -> RunResult:
        """Join the job and follow it to its end."""
        try:
            with signals.holding():
                self._join()
            result = self._invoke_run(role)
        except RendezvousGracefulExitError as error:
            logger.debug("Rendezvous gracefully exited: %s", error)
            return RunResult(WorkerState.STOPPED)
        self._total_execution_time = int(time.monotonic() - start_s)
        self._record_metrics(result)
        self._record_worker_events(result)
        return result

    def _join(self) -> None:
        """Take the seat of this node.

        Raises:
            RendezvousError: the agent cannot begin.
        """
        handler = self._handler()
        self._seat = self._new_seat(handler)
        handler.take_seat(self._seat)
        self._seat.start()

    def _new_seat(self, handler: CoordinatedRendezvous) -> Seat:
        load_grpc()
        from rallypoint.elastic.node.seat import ForeignSeat

        return ForeignSeat(self._plan(handler))

    def _plan(self, handler: CoordinatedRendezvous) -> LaunchPlan:
        plan = handler.plan(self._worker_group.spec)
        options = replace(
            plan.options,
            shutdown_timeout=int(self._shutdown_timeout * 1000),
            outcome_timeout=int(self._exit_barrier_timeout * 1000),
        )
        return replace(plan, options=options, signal_names=self.signals_to_handle)

    def _handler(self) -> CoordinatedRendezvous:
        handler = self._worker_group.spec.rdzv_handler
        if not isinstance(handler, CoordinatedRendezvous):
            raise TypeError(
                f"WorkerSpec.rdzv_handler is a {type(handler).__name__}: make it with "
                "rallypoint.elastic.get_rendezvous_handler"
            )
        return handler

    def _leave(self, sigval: signal.Signals | None) -> None:
        """Shut down, and leave the job unless it has ended."""
        seat, error = self._seat, sys.exc_info()[1]
        if seat is not None:
            text = "" if error is None else f"{type(error).__name__}: {error}".splitlines()[0]
            seat.leave(sigval, text or "the program has ended its part")
        try:
            if sigval is None:
                self._shutdown(timeout=self._shutdown_timeout)
            else:
                self._shutdown(sigval, timeout=self._shutdown_timeout)
        finally:
            if seat is not None:
                seat.close()
                self._seat = None
                self._handler().take_seat(None)

    def _sit(self) -> Seat:
        assert self._seat is not None, "the agent does not run"
        return self._seat

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        spec = self._worker_group.spec
        name = spec.get_entrypoint_name()
        logger.debug("[%s] starting workers for entrypoint: %s", spec.role, name)
        try:
            return self._follow_rounds(self._worker_group)
        except (RendezvousClosedError, RendezvousTimeoutError, RendezvousGracefulExitError):
            result = self._find_result()
            if result is None:
                raise
            return result

    def _follow_rounds(self, group: WorkerGroup) -> RunResult:
        """Run round after round; return the result of a job that succeeds.

        Raises:
            RendezvousError: no further round begins.
        """
        seat = self._sit()
        self._initialize_workers(group)
        while True:
            seen = seat.view
            result = self._monitor_workers(group)
            state = group.state = result.state
            self._record_state(state)
            if state is WorkerState.SUCCEEDED:
                seat.succeeded()
                self._exit_barrier()
                if seat.has_ended_well():
                    return result
                self._restart_workers(group)
            elif state in (WorkerState.UNHEALTHY, WorkerState.FAILED):
                self._failed = result
                self._report_failure(result)
                self._follow_failure(group)
            elif state is not WorkerState.HEALTHY:
                raise RuntimeError(f"[{group.spec.role}] Worker group in {state.name} state")
            elif group.spec.rdzv_handler.num_nodes_waiting() > 0:
                self._restart_workers(group)
            else:
                seat.await_change(seen, group.spec.monitor_interval)

    def _follow_failure(self, group: WorkerGroup) -> None:
        """Restart the workers, or stop them for good, as the coordinator decides.

        Raises:
            RendezvousError: no further round begins.
        """
        seat = self._sit()
        if self._remaining_restarts > 0:
            self._remaining_restarts -= 1
            self._restart_workers(group)
            return
        self._stop_workers(group)
        group.state = WorkerState.FAILED
        seat.stopped()
        if not seat.await_next():
            raise seat.explain_end()
        self._initialize_workers(group)  # the failure was the consequence of another one

    def _find_result(self) -> RunResult | None:
        """Return the result of a job that has ended; None: it has none on this node."""
        from rallypoint.elastic.agents import outcomes

        ended = self._sit().view.ended
        if ended is None or not self._sit().has_begun or not outcomes.has_failed_for_good(ended):
            return None
        failures = {} if self._failed is None else self._find_failures(self._failed)
        failures = failures or outcomes.find_first_failure(ended)
        if not failures:  # no worker has failed: the error says what did
            return None
        self._worker_group.state = WorkerState.FAILED
        return RunResult(WorkerState.FAILED, failures=failures)

    def _find_failures(self, failed: RunResult) -> dict[int, Any]:
        """Return the failures of the last round here, now that all of its workers have ended."""
        return failed.failures

    def _report_failure(self, result: RunResult) -> None:
        """Report the workers that have failed; without one, that the agent does not trust them."""
        ranks = {one.global_rank: one.local_rank for one in self._worker_group.workers}
        failed = {ranks[rank]: one for rank, one in result.failures.items() if rank in ranks}
        self._sit().failed(failed, f"the agent found its workers {result.state.name}")

    def _exit_barrier(self) -> None:
        """Wait until the coordinator has decided: the job has ended, or the round is repeated."""
        number = self._sit().number
        logger.debug(
            "Local worker group finished (%s); waiting for the other nodes",
            self._worker_group.state,
        )
        self._in_exit_barrier = True
        try:
            self._sit().node.wait(lambda view: not view.wants(number))
        finally:
            self._in_exit_barrier = False

    # --- one round ---

    @prof
    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Wait for a round, and take over the place of this node in it.

        Raises:
            RendezvousError: none begins here.
        """
        spec = worker_group.spec
        with self.record_duration("RENDEZVOUS"):
            info = spec.rdzv_handler.next_rendezvous()
        self._failed = None
        self._store = info.store
        with self.record_duration("ASSIGN_WORKER_RANKS"):
            workers = self._assign_worker_ranks(info.store, info.rank, info.world_size, spec)
        worker_group.workers = workers
        worker_group.store = info.store
        worker_group.group_rank = info.rank
        worker_group.group_world_size = info.world_size
        bootstrap = info.bootstrap_store_info
        worker_group.master_addr = spec.master_addr or bootstrap.master_addr
        worker_group.master_port = spec.master_port or bootstrap.master_port
        restarts = self._sit().order.header.restart_count
        self._remaining_restarts = max(0, spec.max_restarts - restarts)
        logger.debug(
            "[%s] Rendezvous complete for workers: restart_count=%d group_rank=%s "
            "group_world_size=%s global_ranks=%s",
            spec.role,
            restarts,
            info.rank,
            info.world_size,
            [worker.global_rank for worker in workers],
        )

    @prof
    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Return the workers of this node with the ranks that the coordinator has assigned."""
        order = self._sit().order
        place = order.assignment
        return [
            Worker(
                local_rank=local_rank,
                global_rank=place.first_rank + local_rank,
                role_rank=place.first_role_rank + local_rank,
                world_size=order.header.world_size,
                role_world_size=place.role_world_size,
            )
            for local_rank in range(spec.local_world_size)
        ]

    @prof
    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Wait for a round and start its workers; they count as HEALTHY then.

        Raises:
            RendezvousError: no round begins here.
        """
        role = worker_group.spec.role
        logger.debug("[%s] Rendezvous'ing worker group", role)
        self._rendezvous(worker_group)
        logger.debug("[%s] Starting worker group", role)
        ids = self._start_workers(worker_group)
        for worker in worker_group.workers:
            worker.id = ids.get(worker.local_rank)
            self._record(self._construct_event("START", EventSource.WORKER, worker))
        self._sit().began([ids.get(one.local_rank) for one in worker_group.workers])
        worker_group.state = WorkerState.HEALTHY

    @prof
    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Stop the workers, wait for the next round, and start them again.

        Raises:
            RendezvousError: no further round begins here.
        """
        logger.debug("[%s] Stopping worker group", worker_group.spec.role)
        self._stop_workers(worker_group)
        worker_group.state = WorkerState.STOPPED
        self._initialize_workers(worker_group)
