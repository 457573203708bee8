"""The events that torchrun's agent records, one JSON object each.

Names and fields are those of torch 2.13's `Event`, including the lists of one item in `metadata`,
and the agent's SUCCEEDED, which means that it took part to the end, not that the job succeeded. Two
things differ: `timestamp` is a time, and a worker that ended with 0 before another one failed is
SUCCEEDED. ASSIGN_WORKER_RANKS is not recorded, because ranks come with the round.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from msgspec import Struct

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.core.held_round import HeldRound, LocalWorker, Stage
from rallypoint.agent.torchelastic.last_round import has_been_stopped, has_failed
from rallypoint.agent.torchelastic.root_cause import to_torch_form

AGENT = "AGENT"
WORKER = "WORKER"
BACKEND = "rallypoint"

Event = dict[str, object]


class About(Struct, frozen=True):
    """Fields that all events of one agent share."""

    run_id: str
    """The job's name."""
    role: str
    host_name: str
    entry_point: str


class Moment(Struct, frozen=True):
    """The time of an event."""

    unix_ms: int
    since_ms: int
    """Milliseconds since the agent started."""


def build_event(
    state: str,
    about: About,
    moment: Moment,
    order: RunOrder | None,
    *,
    worker: LocalWorker | None = None,
    duration_ms: int | None = None,
    raw_error: str | None = None,
) -> Event:
    """Return one event.

    Args:
        state: such as "START"; the last part of the name.
        about: the agent.
        moment: now.
        order: the round; None before the first.
        worker: subject of the event; None: the agent.
        duration_ms: how long the step took.
        raw_error: an error, as JSON or as text.
    """
    more: Event = {
        "group_world_size": order.header.group_world_size if order else None,
        "entry_point": about.entry_point,
    }
    if worker is not None and order is not None:
        more |= {
            "local_rank": [worker.local_rank],
            "role_rank": [order.assignment.first_role_rank + worker.local_rank],
            "role_world_size": [order.assignment.role_world_size],
            "exit_code": [None if worker.exit is None else worker.exit.number],
            "worker_pid": [worker.pid or None],
        }
    return {
        "name": f"torchelastic.worker.status.{state}",
        "source": AGENT if worker is None else WORKER,
        "timestamp": moment.unix_ms,
        "metadata": {
            "run_id": about.run_id,
            "global_rank": order.assignment.first_rank + worker.local_rank
            if worker and order
            else None,
            "group_rank": order.assignment.group_rank if order else None,
            "worker_id": str(worker.pid) if worker is not None else None,
            "role": about.role,
            "hostname": about.host_name,
            "state": state,
            "total_run_time": moment.since_ms // 1000,
            "rdzv_backend": BACKEND,
            "raw_error": raw_error,
            "metadata": json.dumps(more),
            "agent_restarts": order.header.restart_count if order else 0,
            "duration_ms": duration_ms,
        },
    }


def worker_state(worker: LocalWorker) -> str:
    """Return torch's state of an ended worker."""
    if has_failed(worker):
        return "FAILED"
    return "TERMINATED" if has_been_stopped(worker) else "SUCCEEDED"


def raw_error(worker: LocalWorker) -> str | None:
    """Return the error of a failed worker in torch's JSON; None if it did not fail."""
    exit = worker.outcome
    if exit is None or not has_failed(worker):
        return None
    if exit.error is None:
        return json.dumps({"message": exit.stderr_tail or "<NONE>"})
    time_s = exit.error.time_s or (exit.failed_ms or 0) // 1000
    return json.dumps(to_torch_form(exit.error.message, exit.error.traceback, time_s))


class EventLog(Struct):
    """Records the events of an agent, from the changes of the round that it holds."""

    about: About
    record: Callable[[Event], None]
    moment: Callable[[], Moment]
    _held: HeldRound | None = None
    """The last held round, in its last state."""
    _is_seeking: bool = True
    _sought_ms: int = 0
    """Start of the wait for a round, in ms since the agent started."""

    def saw(self, held: HeldRound | None) -> None:
        """Record the changes since the last call, given the round that the agent holds now."""
        if held is None:
            if not self._is_seeking:
                self._is_seeking, self._sought_ms = True, self.moment().since_ms
            return
        before, self._held = self._held, held
        if self._is_seeking:
            self._is_seeking = False
            took_ms = self.moment().since_ms - self._sought_ms
            self._record("RENDEZVOUS", duration_ms=took_ms)
        if held.stage is Stage.RUNNING and before is not None and before.stage is Stage.STARTING:
            for worker in held.workers:
                self._record("START", worker=worker)

    def ended(self, *, is_orderly: bool, text: str) -> None:
        """Record the end of the agent.

        Args:
            is_orderly: it took part until the end of the job, whatever its outcome.
            text: why it ends, if not.
        """
        for worker in self._held.workers if self._held is not None else ():
            self._record(worker_state(worker), worker=worker, error=raw_error(worker))
        self._record("SUCCEEDED" if is_orderly else "FAILED", error=None if is_orderly else text)

    def _record(
        self,
        state: str,
        *,
        worker: LocalWorker | None = None,
        duration_ms: int | None = None,
        error: str | None = None,
    ) -> None:
        order = None if self._held is None else self._held.order
        moment = self.moment()
        self.record(
            build_event(
                state,
                self.about,
                moment,
                order,
                worker=worker,
                duration_ms=duration_ms,
                raw_error=error,
            )
        )
