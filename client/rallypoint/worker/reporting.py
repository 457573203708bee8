"""Reports of progress: seldom, and without making the training wait."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from rallypoint.client.sync import Client

INTERVAL_S = 1.0
"""Between two reports. Of what comes in between, the last is reported when the time is over."""
REPORT_S = 10.0
"""How long a report may take. No other one is sent meanwhile."""
FLUSH_S = 0.5
"""How long the end of the process waits for the last report."""

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Before a report that no one has heard is repeated; each is varied by half of itself."""
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""How a report fails that another attempt may bring to a coordinator."""

Wait = Callable[[float, Callable[[], None]], None]
"""Calls a function after so many seconds."""


def wait_in_thread(pause_s: float, act: Callable[[], None]) -> None:
    """Call `act` after a pause; the process may end before."""
    timer = threading.Timer(pause_s, act)
    timer.daemon = True
    timer.start()


class ProgressReports:
    """What one process reports. Threads may share it."""

    def __init__(
        self,
        client: Client,
        job_id: str,
        now_s: Callable[[], float] = time.monotonic,
        wait: Wait = wait_in_thread,
    ) -> None:
        """Begin without a report.

        Args:
            client: sends the reports.
            job_id: the job.
            now_s: a clock that never runs backwards.
            wait: calls a function after so many seconds.
        """
        self._client = client
        self._job_id = job_id
        self._now_s = now_s
        self._wait = wait
        self._lock = threading.RLock()  # a report that has ended at once calls `_look` at once
        self._step = 0
        """The highest step so far."""
        self._reached_s = 0.0
        """When it was reached."""
        self._sent = 0
        """The highest step of a report that is under way or was heard."""
        self._next_s = 0.0
        self._report: Any = None
        """The latest report: a future."""
        self._failures = 0
        """Reports of the last step that no one has heard."""
        self._is_timed = False
        """`_again` will be called: training may reach no further step, and the last one counts."""
        self._is_over = False
        """The process ends: there is one more report, and nothing is repeated after a pause."""

    def note(self, step: int) -> None:
        """Note that training has reached a step, and report it, now or as soon as it is time."""
        with self._lock:
            if step > self._step:
                self._step, self._reached_s = step, self._now_s()
                self._failures = 0
            self._send_in_time()

    def flush(self) -> None:
        """Report the last step, and wait a moment for the answer."""
        ends_s = self._now_s() + FLUSH_S
        with self._lock:
            self._is_over = True
        if self._report is not None:  # its end calls `_look` meanwhile, so this holds no lock
            _has_succeeded(self._report, max(0.0, ends_s - self._now_s()))
        with self._lock:
            self._send(max(0.0, ends_s - self._now_s()))

    def _send_in_time(self) -> None:
        if self._is_over or self._step <= self._sent:
            return
        left_s = self._next_s - self._now_s()
        is_idle = self._report is None or self._report.done()
        if is_idle and left_s <= 0:
            self._send()
        elif not self._is_timed:
            self._is_timed = True
            self._wait(left_s if left_s > 0 else INTERVAL_S, self._again)

    def _again(self) -> None:
        with self._lock:
            self._is_timed = False
            self._send_in_time()

    def _send(self, last_s: float | None = None) -> None:
        """Report the last step; wait so long for the answer if it is the last report."""
        if self._step > self._sent:
            self._sent = self._step
            now_s = self._now_s()
            self._next_s = now_s + INTERVAL_S
            ago_ms = max(0, round((now_s - self._reached_s) * 1000))
            self._report = self._client.begin_report(
                self._job_id,
                self._step,
                REPORT_S if last_s is None else last_s,
                step_ago_ms=ago_ms,
                is_last=last_s is not None,
            )
            self._report.add_done_callback(self._look)

    def _look(self, report: Any) -> None:
        """Repeat a report that no one has heard, after a pause."""
        with self._lock:
            if _has_succeeded(report, 0.0):
                self._failures = 0
            elif report.code() in AWAY and self._failures < len(PAUSES_S):
                pause_s = PAUSES_S[self._failures] * random.uniform(0.5, 1.5)
                self._failures += 1
                self._sent = 0
                if not self._is_timed and not self._is_over:  # further steps do not wait for this
                    self._is_timed = True
                    self._wait(pause_s, self._again)


def _has_succeeded(report: Any, limit_s: float) -> bool:
    """Return whether a report was answered, within so much time."""
    try:
        report.result(timeout=limit_s)
    except (grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError):
        return False  # nothing depends on it: the round may just be over
    return True
