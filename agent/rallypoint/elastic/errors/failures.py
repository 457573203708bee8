"""The failure of a worker as a value, and the exception that a failed launch raises."""

from __future__ import annotations

import copy
import json
import logging
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rallypoint.base.exit_codes import find_signal_name

if TYPE_CHECKING:
    from rallypoint.agent.core.held_round import LocalExit

logger = logging.getLogger(__name__)

NOT_AVAILABLE = "<N/A>"
NO_ERROR = "the worker recorded no error: decorate its main function with @record"
WIDTH_MAX = 60
"""Columns of the lines that frame a report."""

_NO_DATA: dict[str, Any] = {"message": "<NONE>"}
_SYSTEM_ERROR = {"category": "system_terminated_error", "retryability": "False"}


@dataclass
class ProcessFailure:
    """How a worker failed.

    An error file that cannot be read counts as missing, because its worker's program wrote it.
    """

    local_rank: int
    """The worker's number on its node."""
    pid: int
    """Of its process; 0: it was not started."""
    exitcode: int
    """Its exit code, or minus the number of the signal that killed it."""
    error_file: str
    """Where it recorded its error; `<N/A>` if it did not."""
    error_file_data: dict[str, Any] = field(init=False)
    """The content of that file."""
    message: str | dict[str, Any] = field(init=False)
    """The error: an explanation, or what the file has as its message: `message` and `extraInfo`
    with `py_callstack` and `timestamp`."""
    timestamp: int = field(init=False)
    """When it failed: Unix time in seconds, from the file if it has it."""

    def __post_init__(self) -> None:
        """Read the error file, or explain the exit code."""
        self.error_file_data = copy.deepcopy(_NO_DATA)
        self.message = ""
        self.timestamp = int(time.time())  # noqa: TID251  # for people, as in the error file
        if not self._has_read():
            self.error_file = NOT_AVAILABLE
        if self.message:
            return
        if self.exitcode < 0:
            number = -self.exitcode
            self.message = f"Signal {number} ({self.signal_name()}) received by PID {self.pid}"
        else:
            self.error_file_data["errorTraits"] = dict(_SYSTEM_ERROR)
            self.message = NO_ERROR

    def _has_read(self) -> bool:
        if not os.path.isfile(self.error_file):  # a pipe would block
            return False
        try:
            with open(self.error_file, encoding="utf-8", errors="replace") as file:
                data = json.load(file)
            message = data["message"]
            extra = data if isinstance(message, str) else message.get("extraInfo", {})
            seconds = int(extra.get("timestamp") or os.stat(self.error_file).st_mtime)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            logger.warning("%s is no error file: %r", self.error_file, error)
            return False
        self.error_file_data, self.message, self.timestamp = data, message, seconds
        return True

    @classmethod
    def from_exit(cls, local_rank: int, pid: int, end: LocalExit) -> ProcessFailure:
        """Return the failure that the agent reports; its error may come from standard error.

        Args:
            local_rank: the worker's number on its node.
            pid: of its process; 0: it was not started.
            end: how it ended, or its error while it still runs.
        """
        failure = cls(local_rank, pid, end.number, end.error_file)
        has_file = failure.error_file != NOT_AVAILABLE
        if end.failed_ms is not None and not has_file:
            failure.timestamp = end.failed_ms // 1000
        if end.error is not None and not has_file:
            failure.message = {"message": end.error.message}
            if end.error.traceback:
                seconds = str(failure.timestamp)
                extra = {"py_callstack": end.error.traceback, "timestamp": seconds}
                failure.message["extraInfo"] = extra
            failure.error_file_data = {"message": failure.message}
        return failure

    def signal_name(self) -> str:
        """Return the name of the signal that killed it, or `<N/A>`."""
        return find_signal_name(-self.exitcode) or NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Return when it failed, in local time, as YYYY-MM-DD_HH:MM:SS."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")  # noqa: DTZ006


class ChildFailedError(Exception):
    """A launch has failed because workers did; its text is a report of the failures.

    From a function that `record` decorates, it passes the first failed worker's error file on to
    the process that started this one.

    Attributes:
        name: what was launched.
        failures: of each failed worker, by global rank; never empty.
    """

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        """Take at least one failure.

        Raises:
            AssertionError: there is none.
        """
        if not failures:
            raise AssertionError("a ChildFailedError needs a failure")
        self.name = name
        self.failures = dict(failures)
        super().__init__(self.format_msg())

    def __reduce__(self) -> tuple[Any, ...]:
        """Make it possible to pickle: its text alone does not make another one."""
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the rank that failed first, and its failure."""
        rank = min(self.failures, key=lambda rank: self.failures[rank].timestamp)
        return rank, self.failures[rank]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return the report: all failures, and the first one as the root cause.

        Args:
            boarder_delim: character of the first and the last line.
            section_delim: character of the lines between sections.
        """
        title = f"{self.name} FAILED"
        root, _ = self.get_first_failure()
        texts = {
            rank: _format_failure(index, rank, failure)
            for index, (rank, failure) in enumerate(self.failures.items())
        }
        lines = [title, *(line for text in texts.values() for line in text.split("\n"))]
        width = min(WIDTH_MAX, max(map(len, lines)))
        others = [text for rank, text in texts.items() if rank != root]
        border, section = boarder_delim * width, section_delim * width
        report = ["", border, title, section, "Failures:"]
        report += others or ["  <NO_OTHER_FAILURES>"]
        report += [section, "Root Cause (first observed failure):", texts[root], border]
        return "\n".join(report)


def _format_failure(index: int, rank: int, failure: ProcessFailure) -> str:
    from rallypoint.base.names import find_full_name  # loads asyncio, which no worker needs here

    name = failure.signal_name()
    signal_text = "" if name == NOT_AVAILABLE else f" ({name})"
    return "\n".join(
        (
            f"[{index}]:",
            f"  time      : {failure.timestamp_isoformat()}",
            f"  host      : {find_full_name()}",
            f"  rank      : {rank} (local_rank: {failure.local_rank})",
            f"  exitcode  : {failure.exitcode} (pid: {failure.pid}) {signal_text}",
            f"  error_file: {failure.error_file}",
            f"  traceback : {_error_text(failure.message)}",
        )
    )


def _error_text(message: str | dict[str, Any]) -> str:
    """Return the traceback, else the message, as one indented block."""
    if isinstance(message, str):
        return message
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(stack or message.get("message", NOT_AVAILABLE)).replace("\n", "\n  ")


class SignalException(Exception):
    """The launching process got a signal that ends it.

    Attributes:
        sigval: the signal.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        """Carry the text and the signal."""
        super().__init__(msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[Any, ...]:
        """Make it possible to pickle: its text alone does not make another one."""
        return type(self), (*self.args, self.sigval)
