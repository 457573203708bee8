"""The events that torchrun's agent records, in its words: one JSON object each.

Names and fields are those of torch 2.13's `Event`, down to the lists of one in `metadata` and to
the agent's SUCCEEDED, which says that it took part to the end and not that the job succeeded. Two
things are better: `timestamp` is a time, and a worker that ended with 0 before another failed is
SUCCEEDED. ASSIGN_WORKER_RANKS is not recorded, since ranks come with the round.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from rallypoint.agent.core.model import Held, LocalExit, LocalWorker, RunOrder, Stage
from rallypoint.agent.last_round import has_been_stopped, has_failed
from rallypoint.agent.root_cause import to_torch_form

AGENT = "AGENT"
WORKER = "WORKER"
BACKEND = "rallypoint"

Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class About:
    """What all events of one agent have in common."""

    run_id: str
    """The job's name."""
    role: str
    host_name: str
    entry_point: str


@dataclass(frozen=True, slots=True)
class Moment:
    """When an event was."""

    unix_ms: int
    since_ms: int
    """How long the agent had run."""


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
        worker: the worker that it is about; None: it is about the agent.
        duration_ms: how long what it tells of took.
        raw_error: an error as JSON, or in words.
    """
    more: Event = {
        "group_world_size": order.group_world_size if order else None,
        "entry_point": about.entry_point,
    }
    if worker is not None and order is not None:
        more |= {
            "local_rank": [worker.local_rank],
            "role_rank": [order.first_role_rank + worker.local_rank],
            "role_world_size": [order.role_world_size],
            "exit_code": [None if worker.exit is None else _exit_number(worker.exit)],
            "worker_pid": [worker.pid or None],
        }
    return {
        "name": f"torchelastic.worker.status.{state}",
        "source": AGENT if worker is None else WORKER,
        "timestamp": moment.unix_ms,
        "metadata": {
            "run_id": about.run_id,
            "global_rank": order.first_rank + worker.local_rank if worker and order else None,
            "group_rank": order.group_rank if order else None,
            "worker_id": str(worker.pid) if worker is not None else None,
            "role": about.role,
            "hostname": about.host_name,
            "state": state,
            "total_run_time": moment.since_ms // 1000,
            "rdzv_backend": BACKEND,
            "raw_error": raw_error,
            "metadata": json.dumps(more),
            "agent_restarts": order.restart_count if order else 0,
            "duration_ms": duration_ms,
        },
    }


def worker_state(worker: LocalWorker) -> str:
    """Return what became of a worker, in torch's word."""
    if has_failed(worker):
        return "FAILED"
    return "TERMINATED" if has_been_stopped(worker) else "SUCCEEDED"


def raw_error(worker: LocalWorker) -> str | None:
    """Return the error of a worker that failed as the JSON that torch would have; else None."""
    exit = worker.exit
    if exit is None or not has_failed(worker):
        return None
    if exit.error is None:
        return json.dumps({"message": exit.stderr_tail or "<NONE>"})
    time_s = exit.error.time_s or (exit.failed_ms or 0) // 1000
    return json.dumps(to_torch_form(exit.error.message, exit.error.traceback, time_s))


def _exit_number(exit: LocalExit) -> int:
    return exit.exit_code if exit.exit_code is not None else -(exit.signal or 0)


@dataclass(slots=True)
class EventLog:
    """Watches the round that an agent holds, and records what torch's agent would."""

    about: About
    record: Callable[[Event], None]
    moment: Callable[[], Moment]
    _held: Held | None = None
    """The last that was held."""
    _is_seeking: bool = True
    _sought_ms: int = 0
    """Since when a round has been waited for, in ms of the agent's life."""

    def saw(self, held: Held | None) -> None:
        """Note what is held now."""
        if held is None:
            if not self._is_seeking:
                self._is_seeking, self._sought_ms = True, self.moment().since_ms
            return
        before, self._held = self._held, held
        if self._is_seeking:
            self._is_seeking = False
            took_ms = self.moment().since_ms - self._sought_ms
            self._say("RENDEZVOUS", duration_ms=took_ms)
        if held.stage is Stage.RUNNING and before is not None and before.stage is Stage.STARTING:
            for worker in held.workers:
                self._say("START", worker=worker)

    def ended(self, *, is_orderly: bool, text: str) -> None:
        """Note that the agent ends.

        Args:
            is_orderly: it took part until the end of the job, however that was.
            text: why it ends otherwise.
        """
        for worker in self._held.workers if self._held is not None else ():
            self._say(worker_state(worker), worker=worker, error=raw_error(worker))
        self._say("SUCCEEDED" if is_orderly else "FAILED", error=None if is_orderly else text)

    def _say(
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
