"""Planted bugs in the operations on jobs and nodes."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rallypoint.server.core import operations
from rallypoint.server.core.model.job import Gone
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import REQUESTED
from rallypoint.server.core.rounds import settling
from rallypoint.server.core.rounds.settling import close as real_close
from rallypoint.server.core.sessions import opening
from rallypoint.server.core.verdicts import policy
from sim.seeds.planting import Bug, Patch


def _carry_out_twice() -> list[Patch]:
    """Forget which requests were carried out."""
    return [
        (operations, "was_done", lambda draft, operation: False),
        (operations, "check_id", lambda draft, operation: None),
    ]


def _forget_with_the_run() -> list[Patch]:
    """Begin a run without the requests of the one before."""
    real = opening._next_run

    def next_run(job: Any, spec: Any) -> Any:
        return replace(real(job, spec), operations=())

    return [(opening, "_next_run", next_run)]


def _forget_with_the_job() -> list[Patch]:
    """Delete the requests with the job."""

    def gone(ended_run: int, round_number: int, done: tuple[str, ...], fenced_ms: int) -> Gone:
        return Gone(ended_run, round_number, (), fenced_ms)

    return [(opening, "Gone", gone)]


def _use_numbers_again() -> list[Patch]:
    """Count the rounds and runs of a job from 1 again after it was deleted."""
    real = opening._first_run

    def first_run(gone: Gone, job_id: Any, spec: Any) -> Any:
        return real(Gone(operations=gone.operations), job_id, spec)

    return [(opening, "_first_run", first_run)]


def _charge_a_request() -> list[Patch]:
    """Charge a restart for a round that an operator has ended."""
    real = policy.judge

    def judge(job: Any, round: Any, now_ms: int, **also: Any) -> Any:
        found = real(job, round, now_ms, **also)
        if found.reason not in REQUESTED or job.counts.restart_count >= job.spec.max_restarts:
            return found
        counts = replace(found.counts, restart_count=found.counts.restart_count + 1)
        return replace(found, counts=counts)

    return [(settling, "judge", judge)]


def _cancel_later() -> list[Patch]:
    """Answer before the run has ended, if a round is being stopped."""

    def close(draft: Any, job: Any, *rest: Any) -> None:
        if job.phase is not Phase.STOPPING:
            real_close(draft, job, *rest)

    return [(operations, "close", close)]


def _give_up_no_one() -> list[Patch]:
    """Leave silent nodes to their leases."""
    return [(operations, "_give_up_silent", lambda draft, job: None)]


def _keep_an_unfit_round() -> list[Patch]:
    """Let a round run on that is too small or too large."""
    return [(operations, "_fits", lambda spec, round: True)]


def _stop_for_missing_nodes() -> list[Patch]:
    """Stop a round to wait for nodes, although the request requires them."""

    def update(draft: Any, job: Any, operation: Any) -> Any:
        return real(draft, job, replace(operation, require_nodes=False))

    real = operations._update
    return [(operations, "_update", update)]


def _delete_nothing() -> list[Patch]:
    """Answer that a job was deleted, and keep it."""
    return [(operations, "drop_job", lambda draft, job: None)]


def _restart_any_round() -> list[Patch]:
    """Restart whichever round runs, although another one was meant."""

    def restart(draft: Any, job: Any, operation: Any) -> Any:
        return known(draft, job, replace(operation, round=0))

    known = operations._restart
    return [(operations, "_restart", restart)]


def _create_with_defaults() -> list[Patch]:
    """Open a created run with fewer restarts than were requested."""
    real = opening.open_run

    def open_run(draft: Any, job_id: Any, spec: Any) -> Any:
        return real(draft, job_id, replace(spec, max_restarts=0))

    return [(operations, "open_run", open_run)]


def _cordon_no_one() -> list[Patch]:
    """Answer that a node is cordoned, and do nothing."""
    return [(operations, "cordon", lambda draft, job, request: None)]


HOLD = frozenset({"OperationsHold"})

OPERATION_BUGS: dict[str, Bug] = {
    "carry out a request twice": (_carry_out_twice, HOLD),
    "forget requests with the run": (_forget_with_the_run, HOLD),
    "forget requests with the job": (_forget_with_the_job, HOLD),
    "use numbers of a deleted job again": (
        _use_numbers_again,
        frozenset({"NumberMeansOneRound", "NumbersOnlyGrow", "OutcomeIsOne", "ExitsClean"}),
    ),
    "charge a requested restart": (_charge_a_request, HOLD),
    "cancel later": (_cancel_later, HOLD),
    "give up no one": (_give_up_no_one, HOLD),
    "keep an unfit round": (_keep_an_unfit_round, HOLD),
    "stop for missing nodes": (_stop_for_missing_nodes, HOLD),
    "delete nothing": (_delete_nothing, HOLD),
    "restart any round": (_restart_any_round, HOLD),
    "create with defaults": (_create_with_defaults, HOLD),
    "cordon no one": (_cordon_no_one, HOLD),
}
