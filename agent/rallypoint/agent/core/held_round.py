"""The round that a node holds: its workers, their exits, and its stage.

A node holds a round from the start of its workers until no process of them is left. `NEXT_STAGES`
lists the stages that may follow each stage; any other change is a bug of ours.
"""

from __future__ import annotations

from enum import Enum
from typing import TypedDict, Unpack

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.core.desired import RunOrder


class Stage(Enum):
    """Progress of the held round on this node; `session/translate.py` maps it to a `NodeState`."""

    STARTING = "starting"  # at least one worker has not been started
    RUNNING = "running"  # every worker was started; some may have ended
    SUCCEEDED = "succeeded"  # every worker exited with 0 before any stop
    FAILED = "failed"  # a worker failed, or could not be started
    STOPPING = "stopping"  # workers were signalled, and have until the shutdown timeout ends
    SWEEPING = "sweeping"  # remaining processes of the workers are being killed
    BLOCKED = "blocked"  # some of them survived SIGKILL
    CLEAN = "clean"  # nothing is left; a port for the next round is reserved next


NEXT_STAGES: dict[Stage, tuple[Stage, ...]] = {
    Stage.STARTING: (Stage.RUNNING, Stage.FAILED, Stage.STOPPING),
    Stage.RUNNING: (Stage.SUCCEEDED, Stage.FAILED, Stage.STOPPING),
    Stage.SUCCEEDED: (Stage.STOPPING,),
    Stage.FAILED: (Stage.STARTING, Stage.RUNNING, Stage.STOPPING),
    Stage.STOPPING: (Stage.SWEEPING,),
    Stage.SWEEPING: (Stage.BLOCKED, Stage.CLEAN),
    Stage.BLOCKED: (Stage.CLEAN,),
    Stage.CLEAN: (),  # the node holds no round next
}
"""The stages that may follow each stage. A round starts in STARTING. It goes back only from FAILED,
when the worker that had recorded an error ends with 0."""

STOPPING_STAGES = frozenset({Stage.STOPPING, Stage.SWEEPING, Stage.BLOCKED, Stage.CLEAN})
"""The stages from the stop signal on: an exit is now neither a failure nor a success."""


class IllegalStage(AssertionError):
    """A bug of ours: `NEXT_STAGES` does not allow this change."""

    def __init__(self, round: int, before: Stage, after: Stage) -> None:
        """Name the round and both stages."""
        super().__init__(f"round {round}: {after.value} cannot follow {before.value}")
        self.round = round
        self.before = before
        self.after = after


LOOK_MS_MAX = 2_000
"""How long before SIGKILL the workers that still live are looked at, at most."""


class Milestone(Enum):
    """How far a worker has come before its first step, by the names that scripts use."""

    IMPORTED = "imported"
    PROCESS_GROUP = "process_group"


class ErrorRecord(Struct, frozen=True):
    """The error that a worker recorded: in its error file, or last on standard error."""

    message: str
    traceback: str
    before_exit_ms: int | None
    """How long before the end of the process it was written, or before its discovery while the
    process runs; None when the record has no time."""
    time_s: int | None = None
    """Time in the record, as Unix time; None when the record has no time."""


class LocalExit(Struct, frozen=True):
    """How a worker ended: exactly one of `exit_code` and `signal` is set.

    Or how it failed while it still runs: then neither is set, and `error` is.
    """

    exit_code: int | None
    signal: int | None
    at_ms: int
    """When it ended, or when its error was found."""
    signalled_first: bool
    """The agent had signalled the worker before it ended."""
    error: ErrorRecord | None
    stderr_tail: str
    signalled_before_ms: int | None = None
    """How long before its end the agent had signalled it; None when it had not."""
    oom_killed: bool = False
    """The kernel's OOM killer ended the process."""
    failed_ms: int | None = None
    """When it recorded its error, else when it ended: Unix time, for people to read."""
    error_file: str = ""
    """Its error file; empty when it wrote none."""
    stderr_file: str = ""
    """File with its standard error; empty when there is none."""

    @property
    def is_failure(self) -> bool:
        """True when the worker did not succeed and its failure came before any signal of ours.

        After exit code 0 it has an error only if it was found while the worker ran, and the worker
        ended because of our signal.
        """
        is_success = self.exit_code == 0 and self.error is None
        return not is_success and (self.has_recorded_first or not self.signalled_first)

    @property
    def has_recorded_first(self) -> bool:
        """True when the worker had recorded its error before the agent signalled it."""
        if self.error is None or self.error.before_exit_ms is None:
            return False
        signalled_ms = self.signalled_before_ms
        return signalled_ms is not None and self.error.before_exit_ms > signalled_ms

    @property
    def number(self) -> int:
        """The exit code, or minus the signal that ended it, as torch reports it.

        1 while it runs with its error, and when it was stopped before it had exited with that.
        """
        if not self.exit_code and self.has_recorded_first and not self.oom_killed:
            return 1
        if self.signal is not None:
            return -self.signal
        return 1 if self.exit_code is None else self.exit_code


class LocalWorker(Struct, frozen=True):
    """One worker of the held round."""

    local_rank: int
    pid: int = 0
    """0 until it is started."""
    started_ms: int = 0
    exit: LocalExit | None = None
    """Set once it has ended."""
    recorded: LocalExit | None = None
    """Its failure, if it recorded an error before any signal of ours and did not end at once."""
    milestones: tuple[tuple[Milestone, int], ...] = ()
    """Those that it has reached, each with when; in the order of their arrival."""

    @property
    def outcome(self) -> LocalExit | None:
        """How it ended, else how it failed while it still runs; None while it just runs."""
        return self.recorded if self.exit is None else self.exit

    def started(self, pid: int, now_ms: int) -> LocalWorker:
        """Return the worker with its process."""
        return replace(self, pid=pid, started_ms=now_ms)

    def reached_ms(self, milestone: Milestone) -> int | None:
        """Return when it reached a milestone; None: it has not."""
        return next((at_ms for one, at_ms in self.milestones if one is milestone), None)

    def failed(self, recorded: LocalExit) -> LocalWorker:
        """Return the running worker with its failure."""
        return replace(self, recorded=recorded)

    def ended(self, exit: LocalExit) -> LocalWorker:
        """Return the worker with its exit, which is part of an earlier failure if there is one.

        A clean-up may fail too and overwrite the error file: the first error counts. But a worker
        that ends with 0 by itself has survived the error that it wrote to its error file.
        """
        first = self.recorded
        has_survived = (
            first is not None
            and first.error_file != ""  # else the program around the agent does not trust it
            and exit.exit_code == 0
            and not exit.signalled_first
        )
        if first is not None and first.error is not None and not has_survived:
            age_ms = (first.error.before_exit_ms or 0) + exit.at_ms - first.at_ms
            error = replace(first.error, before_exit_ms=age_ms)
            exit = replace(exit, error=error, failed_ms=first.failed_ms)
            exit = replace(exit, error_file=first.error_file, stderr_file=first.stderr_file)
            exit = replace(exit, stderr_tail=exit.stderr_tail or first.stderr_tail)
        return replace(self, exit=exit)


class HeldRound(Struct, frozen=True):
    """The round that the node holds. Its methods return a changed copy."""

    order: RunOrder
    """The coordinator's order."""
    workers: tuple[LocalWorker, ...]
    """By local rank."""
    stage: Stage = Stage.STARTING
    kill_ms: int | None = None
    """When the shutdown timeout ends; set while STOPPING."""
    look_ms: int = 0
    """How long before SIGKILL the workers that still live are looked at; 0: never, or they were."""
    signalled_ms: int | None = None
    """When the agent first wanted to signal the workers, or drained; None before that."""
    drained_ms: int | None = None
    """When the drain of the node began: ends from then on are its effects, without a signal too."""
    start_failure: str | None = None
    """Why a worker could not be started; None when all could be."""
    still_since_ms: int | None = None
    """When the latest progress of any worker was made, while they stand still; None: they make
    progress, have succeeded, or are being stopped."""

    @property
    def number(self) -> int:
        """Number of the round."""
        return self.order.header.number

    @property
    def is_stopping(self) -> bool:
        """True from the stop signal on."""
        return self.stage in STOPPING_STAGES

    @property
    def is_running(self) -> bool:
        """True while a worker lives and the round is not being stopped."""
        return not self.is_stopping and not self.all_ended

    @property
    def all_ended(self) -> bool:
        """True when every worker has ended."""
        return all(worker.exit is not None for worker in self.workers)

    def reached_ms(self, milestone: Milestone) -> int | None:
        """Return when the last worker reached a milestone; None: not every worker has."""
        latest_ms = 0
        for worker in self.workers:
            at_ms = worker.reached_ms(milestone)
            if at_ms is None:
                return None
            latest_ms = max(latest_ms, at_ms)
        return latest_ms

    def moved(self, stage: Stage, *, kill_ms: int | None = None, look_ms: int = 0) -> HeldRound:
        """Enter `stage`; the shutdown timeout, if it has one, ends at `kill_ms`.

        The workers that still live are looked at `look_ms` before SIGKILL.

        Raises:
            IllegalStage: `NEXT_STAGES` does not allow it.
        """
        if stage not in NEXT_STAGES[self.stage]:
            raise IllegalStage(self.number, self.stage, stage)
        is_over = stage is Stage.SUCCEEDED or stage in STOPPING_STAGES
        still_since_ms = None if is_over else self.still_since_ms
        return self._changed(
            stage=stage, kill_ms=kill_ms, look_ms=look_ms, still_since_ms=still_since_ms
        )

    def looked(self) -> HeldRound:
        """Note that the workers that still live are looked at."""
        return self._changed(look_ms=0)

    def with_worker(self, worker: LocalWorker) -> HeldRound:
        """Replace the worker that has the same local rank."""
        workers = tuple(
            worker if other.local_rank == worker.local_rank else other for other in self.workers
        )
        return self._changed(workers=workers)

    def still(self, since_ms: int | None) -> HeldRound:
        """Note since when the workers stand still; None: they make progress."""
        return self._changed(still_since_ms=since_ms)

    def signalled(self, now_ms: int) -> HeldRound:
        """Note that the workers are to be signalled now, unless they were before."""
        return self if self.signalled_ms is not None else self._changed(signalled_ms=now_ms)

    def drained(self, now_ms: int) -> HeldRound:
        """Note that the drain of the node begins now."""
        return self.signalled(now_ms)._changed(drained_ms=now_ms)

    def without_failure(self) -> HeldRound:
        """Return the round as it is once no failure is left in it, else unchanged."""
        if self.stage is not Stage.FAILED or self.start_failure is not None:
            return self
        outcomes = [worker.outcome for worker in self.workers]
        if any(outcome is not None and outcome.is_failure for outcome in outcomes):
            return self
        is_started = all(worker.pid for worker in self.workers)
        return self.moved(Stage.RUNNING if is_started else Stage.STARTING)

    def start_failed(self, text: str) -> HeldRound:
        """Note that a worker could not be started, and why."""
        return self._changed(start_failure=text).moved(Stage.FAILED)

    def _changed(self, **changes: Unpack[_Changes]) -> HeldRound:
        return replace(self, **changes)


class _Changes(TypedDict, total=False):
    """The fields of a held round that change, so that mypy checks them."""

    workers: tuple[LocalWorker, ...]
    stage: Stage
    kill_ms: int | None
    look_ms: int
    signalled_ms: int
    drained_ms: int
    start_failure: str
    still_since_ms: int | None


def choose_look_ms(shutdown_timeout_ms: int) -> int:
    """Return how long before SIGKILL workers are looked at: they have half of a short timeout."""
    return min(LOOK_MS_MAX, shutdown_timeout_ms // 2)
