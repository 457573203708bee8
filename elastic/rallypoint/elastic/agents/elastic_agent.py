"""What every agent can do, and how its steps become events and metrics with torch's names."""

from __future__ import annotations

import abc
import json
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rallypoint.elastic.events import Event, EventSource, record
from rallypoint.elastic.metrics import put_metric
from rallypoint.elastic.values import RunResult, Worker, WorkerGroup, WorkerState

DEFAULT_ROLE = "default"


class ElasticAgent(abc.ABC):
    """Runs the workers of one node until the job ends."""

    @abc.abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Take part in the job until it ends; see `SimpleElasticAgent.run`."""

    @abc.abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the workers of this node; the object changes while the agent runs."""


class RecordingAgent(ElasticAgent):
    """An agent whose steps become events and metrics."""

    _worker_group: WorkerGroup
    _remaining_restarts: int
    _total_execution_time: int

    def get_event_succeeded(self) -> Event:
        """Return the event that the agent has taken part to the end, whatever the outcome."""
        return self._construct_event(state="SUCCEEDED", source=EventSource.AGENT)

    def get_event_failed(self) -> Event:
        """Return the event that the agent has failed, with the exception that is handled now."""
        return self._construct_event(
            state="FAILED", source=EventSource.AGENT, raw_error=traceback.format_exc()
        )

    @contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Record an event with the time that the block has taken."""
        start_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            duration_ms = (time.perf_counter_ns() - start_ns) / 1e6
            self._record(
                self._construct_event(
                    state=state, source=EventSource.AGENT, duration_ms=duration_ms
                )
            )

    def _record(self, event: Event) -> None:
        record(event, self._worker_group.spec.event_log_handler)

    def _construct_event(
        self,
        state: str,
        source: EventSource,
        worker: Worker | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
        worker_pid: int | None = None,
    ) -> Event:
        group = self._worker_group
        spec = group.spec
        more: dict[str, Any] = {
            "group_world_size": group.group_world_size,
            "entry_point": spec.get_entrypoint_name(),
        }
        if worker is not None:
            more |= {
                "local_rank": (worker.local_rank,),
                "role_rank": (worker.role_rank,),
                "role_world_size": (worker.role_world_size,),
                "exit_code": (exit_code,),
                "worker_pid": (worker_pid,),
            }
        return Event(
            f"torchelastic.worker.status.{state}",
            source=source,
            metadata={
                "run_id": spec.rdzv_handler.get_run_id(),
                "global_rank": None if worker is None else worker.global_rank,
                "group_rank": group.group_rank,
                "worker_id": None if worker is None else str(worker.id),
                "role": spec.role,
                "hostname": socket.gethostname(),
                "state": state,
                "total_run_time": self._total_execution_time,
                "rdzv_backend": spec.rdzv_handler.get_backend(),
                "raw_error": raw_error,
                "metadata": json.dumps(more),
                "agent_restarts": spec.max_restarts - self._remaining_restarts,
                "duration_ms": duration_ms,
            },
        )

    def _record_worker_events(self, result: RunResult) -> None:
        for worker in self._worker_group.workers:
            failure = result.failures.get(worker.global_rank)
            error = None if failure is None else json.dumps(failure.error_file_data)
            self._record(
                self._construct_event(
                    state=self._get_worker_state(worker, result),
                    source=EventSource.WORKER,
                    worker=worker,
                    raw_error=error,
                    exit_code=None if failure is None else failure.exitcode,
                    worker_pid=None if failure is None else failure.pid,
                )
            )

    def _get_worker_state(self, worker: Worker, result: RunResult) -> str:
        """Return the state of a worker; TERMINATED if the agent stopped it."""
        if worker.global_rank in result.failures or worker.global_rank in result.return_values:
            return result.state.value
        return "TERMINATED"

    def _record_metrics(self, group_results: RunResult) -> None:
        """Record the outcome of a run, and which part of the restarts it needed, in percent."""
        spec, failed = self._worker_group.spec, group_results.is_failed()
        retried = self._remaining_restarts != spec.max_restarts
        left = (self._remaining_restarts + 1) / (spec.max_restarts + 1)
        metrics = {
            "flakiness": 100 if failed else 100.0 - 100.0 * left,
            "run_total": 1,
            "run_success_with_retries": retried and not failed,
            "run_success_no_retries": not retried and not failed,
            "run_failed_with_retries": retried and failed,
            "run_failed_no_retries": not retried and failed,
        }
        for name, value in metrics.items():
            put_metric(f"workers.{spec.role}.{name}", int(value))

    def _record_state(self, state: WorkerState) -> None:
        role = self._worker_group.spec.role
        put_metric(f"workers.{role}.remaining_restarts", self._remaining_restarts)
        put_metric(f"workers.{role}.{state.name.lower()}", 1)
