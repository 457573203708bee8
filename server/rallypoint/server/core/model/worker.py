"""A worker process: how it ended, and what that shows about the cause."""

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
    """Time from the record to the end of the process; None when the record has no time."""


class WorkerExit(Struct, frozen=True):
    """How a worker ended. Exactly one of `exit_code` and `signal` is set."""

    local_rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    agent_signalled_first: bool = False
    """The agent signalled it before it ended: the exit is a consequence, whatever its code."""
    ago_ms: int = 0
    """Age of the exit when it was reported."""
    at_ms: int | None = None
    """When it ended, in journal time; None before the core has seen it."""
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
    def is_failure(self) -> bool:
        """True for an end that is neither a success nor the effect of the agent's signal."""
        is_prompted = self.agent_signalled_first and not self.has_recorded_first
        return not is_prompted and self.exit_code != 0


class FailedWorker(Struct, frozen=True):
    """A failed worker with its node and rank."""

    name: NodeName
    rank: int
    exit: WorkerExit
    symptom: Symptom = Symptom.UNKNOWN
    host: str = ""
    """Name of its node's host; empty when unknown."""
