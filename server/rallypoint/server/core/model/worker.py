"""A worker process: how it failed or ended, and what that shows about the cause."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.server.core.model.ids import NodeName


class Symptom(Enum):
    """What the end of a worker shows about the cause."""

    PRIMARY = "primary"  # it caused its failure itself
    UNKNOWN = "unknown"  # the evidence points neither way
    VICTIM = "victim"  # typical of a worker that lost a peer


class ErrorRecord(Struct, frozen=True):
    """The error that a worker recorded before it died."""

    message: str
    traceback: str = ""
    before_exit_ms: int | None = None
    """Time from the record to the end of the process, or to its discovery while the process runs;
    None when the record has no time."""


class WorkerExit(Struct, frozen=True):
    """How a worker ended: exactly one of `exit_code` and `signal` is set.

    Or how it failed while it still runs: then neither is set, and `error` is.
    """

    local_rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    agent_signalled_first: bool = False
    """The agent signalled it before it ended: the exit is a consequence, whatever its code."""
    ago_ms: int = 0
    """Age of the exit when it was reported."""
    at_ms: int | None = None
    """When it ended, or its error was found, in journal time; None before the report has come."""
    ran_ms: int = 0
    error: ErrorRecord | None = None
    stderr_tail: str = ""
    signalled_before_ms: int | None = None
    """Time from the agent's signal to the end of the process; None without a signal."""
    oom_killed: bool = False
    """The kernel's OOM killer killed the process."""
    failed_ms: int | None = None
    """When it failed, as Unix time by its node's clock. For people; it decides nothing."""
    error_file: str = ""
    """Path of its error file on its node; empty without one."""
    stderr_file: str = ""
    """Path of the file with its standard error on its node; empty without one."""

    def dated(self, arrived_ms: int) -> WorkerExit:
        """Return the exit with its time: what its report says of its age was true on arrival."""
        return self if self.at_ms is not None else replace(self, at_ms=arrived_ms - self.ago_ms)

    def without_output(self) -> WorkerExit:
        """Return the exit without its traceback and the end of its standard error."""
        error = None if self.error is None else replace(self.error, traceback="")
        return replace(self, error=error, stderr_tail="")

    def without_words(self) -> WorkerExit:
        """Return the exit without anything that the worker wrote."""
        error = None if self.error is None else replace(self.error, message="", traceback="")
        return replace(self, error=error, stderr_tail="", error_file="", stderr_file="")

    @property
    def has_recorded_first(self) -> bool:
        """True when the worker had recorded its error before the agent signalled it."""
        if self.error is None or self.error.before_exit_ms is None:
            return False
        signalled_ms = self.signalled_before_ms
        return signalled_ms is not None and self.error.before_exit_ms > signalled_ms

    @property
    def has_ended(self) -> bool:
        """False for a worker that has recorded an error and still runs."""
        return self.exit_code is not None or self.signal is not None

    @property
    def is_failure(self) -> bool:
        """True for an end that is neither a success nor the effect of the agent's signal.

        A worker that had failed while it ran does not succeed by ending with 0.
        """
        is_prompted = self.agent_signalled_first and not self.has_recorded_first
        return not is_prompted and (self.exit_code != 0 or self.error is not None)

    @property
    def error_age_ms(self) -> int:
        """Time from its error to its end; 0 when the error has no time, at most its running time.

        The age was measured by one clock. Records of different nodes are compared by their ages.
        """
        before_ms = None if self.error is None else self.error.before_exit_ms
        return min(before_ms or 0, self.ran_ms)

    @property
    def occurred_ms(self) -> int:
        """When it failed, in journal time: when it recorded its error, else when it ended."""
        return (self.at_ms or 0) - self.error_age_ms

    def after_record(self, recorded: WorkerExit) -> WorkerExit:
        """Return the exit with the error that the worker had recorded while it still ran.

        A clean-up may fail too and overwrite the file: the first error counts.
        """
        error = recorded.error
        if error is not None and error.before_exit_ms is not None:
            # Our clock is held back during stalls; that of the agent counts the age of the signal.
            ours_ms = (self.at_ms or 0) - (recorded.at_ms or 0)
            passed_ms = max(0, ours_ms, self.ran_ms - recorded.ran_ms)
            error = replace(error, before_exit_ms=error.before_exit_ms + passed_ms)
        return replace(
            self,
            error=error,
            stderr_tail=self.stderr_tail or recorded.stderr_tail,
            failed_ms=recorded.failed_ms or self.failed_ms,
            error_file=self.error_file or recorded.error_file,
            stderr_file=self.stderr_file or recorded.stderr_file,
        )


class FailedWorker(Struct, frozen=True):
    """A failed worker with its node and rank."""

    name: NodeName
    rank: int
    exit: WorkerExit
    symptom: Symptom = Symptom.UNKNOWN
    host: str = ""
    """Name of its node's host; empty when unknown."""
    command: str = ""
    """How its agent has started it, without arguments; empty when unknown."""
