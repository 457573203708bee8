"""Errors of workers: how a worker records one, and how a launcher reports it.

Names, signatures and the form of the error file are those of torch 2.13's
`torch.distributed.elastic.multiprocessing.errors`. A worker's program writes its error file, so the
content may be anything: a file that cannot be read counts as missing.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import logging
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from rallypoint.base.exit_codes import find_signal_name

if TYPE_CHECKING:
    from rallypoint.agent.core.held_round import LocalExit

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

NOT_AVAILABLE = "<N/A>"
NO_ERROR = "the worker recorded no error: decorate its main function with @record"
WIDTH_MAX = 60
"""Columns of the lines that frame a report."""

_NO_DATA: dict[str, Any] = {"message": "<NONE>"}
_SYSTEM_ERROR = {"category": "system_terminated_error", "retryability": "False"}


@dataclass
class ProcessFailure:
    """How a worker failed."""

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
            logger.warning("%s is not an error file: %r", self.error_file, error)
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
        if failure.error_file != NOT_AVAILABLE:
            return failure
        if end.failed_ms is not None:
            failure.timestamp = end.failed_ms // 1000
        if end.error is not None:
            failure.message = {"message": end.error.message}
            if stack := end.error.traceback:
                extra = {"py_callstack": stack, "timestamp": str(failure.timestamp)}
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
    text = find_stack(message) or str(message.get("message", NOT_AVAILABLE))
    return text.replace("\n", "\n  ")


def find_stack(message: str | dict[str, Any]) -> str:
    """Return the traceback in the `message` of a `ProcessFailure`; empty: none."""
    extra = {} if isinstance(message, str) else message.get("extraInfo", {})
    return str(extra.get("py_callstack") or "") if isinstance(extra, dict) else ""


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


class ErrorHandler:
    """Records an exception, or the root cause of a failed launch, as JSON.

    It goes to the file that $TORCHELASTIC_ERROR_FILE names. A subclass may override `initialize`
    and `record_exception`.
    """

    def _get_error_file_path(self) -> str | None:
        """Return the error file; None or empty: nothing is written."""
        return os.environ.get("TORCHELASTIC_ERROR_FILE")

    def initialize(self) -> None:
        """Prepare the process; called before the function that is recorded.

        Prints the stacks of all threads when a fault of the interpreter ends the process.
        """
        try:
            faulthandler.enable(all_threads=True)
        except (OSError, RuntimeError, ValueError) as error:  # standard error is not a file
            text = f"stacks will not be printed after a fault: {type(error).__name__}: {error}"
            warnings.warn(text, stacklevel=2)

    def _write_error_file(self, file_path: str, error_msg: str) -> None:
        """Write the text, or warn."""
        try:
            with open(file_path, "w", encoding="utf-8") as file:
                file.write(error_msg)
        except OSError as error:
            warnings.warn(f"the error cannot be written to {file_path}: {error}", stacklevel=2)

    def record_exception(self, e: BaseException) -> None:
        """Write an exception with its traceback; do nothing without an error file."""
        path = self._get_error_file_path()
        if not path:
            return
        stack, now_s = "".join(traceback.format_exception(e)), int(time.time())  # noqa: TID251  # the form requires it
        extra = {"py_callstack": stack, "timestamp": str(now_s)}
        message = {"message": f"{type(e).__name__}: {e}", "extraInfo": extra}
        self._write_error_file(path, json.dumps({"message": message}))

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Set the exit code in an error, because the process that wrote it did not know it.

        Args:
            rootcause_error_file: where the error was read, for people.
            rootcause_error: the error; changed in place.
            error_code: exit code of its process, or minus the signal that killed it.
        """
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code
            return
        why = "no message" if message is None else "a message without fields"
        logger.warning(
            "%s has %s: exit code %s is not added", rootcause_error_file, why, error_code
        )

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy a child's error to this process's own error file.

        Args:
            rootcause_error_file: the child's error file.
            error_code: its exit code, or minus its signal; 0: leave what the file holds.

        Raises:
            OSError, ValueError: the child's file cannot be read.
        """
        with open(rootcause_error_file, encoding="utf-8") as file:
            error = json.load(file)
        if error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, error, error_code)
        own = self._get_error_file_path()
        if not own:
            logger.error("no error file of this process: %s is not copied", rootcause_error_file)
            return
        self._rm(own)
        self._write_error_file(own, json.dumps(error))
        logger.info("the error of %s was copied to %s", rootcause_error_file, own)

    def _rm(self, my_error_file: str) -> None:
        """Remove an error that an earlier process left under the same name, and log it.

        A child that inherits the variable may write there before it gets its own.
        """
        with suppress(FileNotFoundError):
            with open(my_error_file, encoding="utf-8", errors="replace") as file:
                logger.warning("%s is replaced; it held: %s", my_error_file, file.read())
            os.remove(my_error_file)


def get_error_handler() -> ErrorHandler:
    """Return the handler that `record` uses by default."""
    return ErrorHandler()


@overload
def record(
    fn: Callable[P, R], error_handler: ErrorHandler | None = None
) -> Callable[P, R | None]: ...


@overload
def record(
    fn: None = None, error_handler: ErrorHandler | None = None
) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...


def record(
    fn: Callable[P, R] | None = None, error_handler: ErrorHandler | None = None
) -> Callable[P, R | None] | Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Decorate the main function of a process to record the exception that ends it.

    An exception is written to the error file and raised. Of a `ChildFailedError`, torch's or ours,
    the error of the worker that failed first is written instead. `sys.exit(0)` becomes a return of
    None; other exits are not recorded.

    Args:
        fn: the function; None: return a decorator, as for `@record(error_handler=…)`.
        error_handler: what records; None: the one of `get_error_handler`.
    """
    handler = error_handler or get_error_handler()

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        @wraps(function)
        def recorded(*args: P.args, **kwargs: P.kwargs) -> R | None:
            handler.initialize()
            try:
                return function(*args, **kwargs)
            except SystemExit as end:
                if end.code == 0:
                    return None
                raise
            except Exception as error:
                _record(handler, error)
                raise

        return recorded

    return decorate if fn is None else decorate(fn)


def _record(handler: ErrorHandler, error: Exception) -> None:
    get_first_failure = getattr(error, "get_first_failure", None)
    if get_first_failure is None:
        handler.record_exception(error)
        return
    rank, failure = get_first_failure()
    if os.path.isfile(failure.error_file):
        handler.dump_error_file(failure.error_file, failure.exitcode)
    else:
        logger.info(
            "rank %s failed without an error file: decorate its function with @record", rank
        )
