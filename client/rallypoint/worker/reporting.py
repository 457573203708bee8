"""Reports of progress: seldom, and without making the training wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from rallypoint.client.sync import Client

INTERVAL_S = 1.0
"""Between two reports. What comes in between is replaced by the next."""
REPORT_S = 10.0
"""How long a report may take. No other one is sent meanwhile."""
FLUSH_S = 0.5
"""How long the end of the process waits for the last report."""


class ProgressReports:
    """What one process reports. Threads may share it."""

    def __init__(
        self, client: Client, job_id: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin without a report.

        Args:
            client: sends the reports.
            job_id: the job.
            now_s: a clock that never runs backwards.
        """
        self._client = client
        self._job_id = job_id
        self._now_s = now_s
        self._lock = threading.Lock()
        self._step = 0
        """The highest step so far."""
        self._sent = 0
        """The highest step of a report."""
        self._next_s = 0.0
        self._report: Any = None
        """The latest report: a future."""

    def note(self, step: int) -> None:
        """Note that training has reached a step, and report it if it is time."""
        with self._lock:
            self._step = max(self._step, step)
            is_idle = self._report is None or self._report.done()
            if is_idle and self._now_s() >= self._next_s:
                self._send()

    def flush(self) -> None:
        """Report the last step, and wait a moment for the answer."""
        ends_s = self._now_s() + FLUSH_S
        with self._lock:
            self._await_report(ends_s)  # gRPC cancels a call that no one refers to any more
            self._send()
            self._await_report(ends_s)

    def _await_report(self, ends_s: float) -> None:
        if self._report is not None:
            try:
                self._report.result(timeout=max(0.0, ends_s - self._now_s()))
            except (grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError):
                pass  # nothing depends on it: the round may just be over

    def _send(self) -> None:
        if self._step > self._sent:
            self._sent = self._step
            self._next_s = self._now_s() + INTERVAL_S
            self._report = self._client.begin_report(self._job_id, self._step, REPORT_S)
