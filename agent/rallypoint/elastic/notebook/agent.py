"""A local agent that shows its progress, and whose workers write to a cell."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from rallypoint.elastic.agents.local_agent import LocalElasticAgent
from rallypoint.elastic.logs.logs_specs import DefaultLogsSpecs
from rallypoint.elastic.logs.std import Std
from rallypoint.elastic.notebook.cell import Cell
from rallypoint.elastic.notebook.worker_error import find_summary
from rallypoint.elastic.values.run_result import RunResult
from rallypoint.elastic.values.worker_group import WorkerGroup, WorkerState
from rallypoint.elastic.values.worker_spec import WorkerSpec

if TYPE_CHECKING:
    from rallypoint.elastic.node.local_seat import LocalSeat
    from rallypoint.elastic.rendezvous.coordinated import CoordinatedRendezvous

SHUTDOWN_TIMEOUT_S = 5
"""Between SIGTERM and SIGKILL: a person waits for an interrupted cell."""
PREFIX = "[rank ${rank}] "


class CellAgent(LocalElasticAgent):
    """Shows each start and each failure as one line."""

    def __init__(self, spec: WorkerSpec, start_method: str, log_dir: str, cell: Cell) -> None:
        """Prepare an agent.

        Args:
            spec: the workers.
            start_method: of the function.
            log_dir: keeps the output and the errors of the workers during the launch.
            cell: where lines go.
        """
        super().__init__(
            spec,
            DefaultLogsSpecs(log_dir=log_dir, tee=Std.ALL),
            start_method,
            log_line_prefix_template=PREFIX,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )
        self._signals_to_handle = ""  # see `interrupts`
        self._cell = cell
        self._shown_round = 0

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Let SIGINT raise KeyboardInterrupt, as in any cell; the second one kills the workers.

        A program's own handler stays.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        seat = self._seat
        if seat is None or not seat.node.is_leaving:
            raise KeyboardInterrupt
        seat.node.leave_on_signal(signum)

    def _new_seat(self, handler: CoordinatedRendezvous) -> LocalSeat:
        seat = super()._new_seat(handler)
        seat.consoles = self._cell.consoles
        return seat

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        restarts = self._sit().order.header.restart_count
        limit = f", restart {restarts} of {spec.max_restarts}" if spec.max_restarts else ""
        count = spec.local_world_size
        start = "1 worker starts" if count == 1 else f"{count} workers start"
        self._cell.show(f"round {self._sit().number}: {start}{limit}")
        return super()._start_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        number = self._sit().number
        if result.state is WorkerState.FAILED and self._shown_round != number:
            self._shown_round = number
            for rank, failure in sorted(result.failures.items()):
                self._cell.show(f"round {number}: rank {rank} failed: {find_summary(failure)}")
        return result
