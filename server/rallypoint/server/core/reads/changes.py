"""The difference between two values of a job, as a record holds it, and its application."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rallypoint.server.core.messages.records import JobChanges, RoundChanges, Splice
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.round import Round

_JOB_VALUES = (
    "opened_ms",
    "forming_since_ms",
    "disrupted_ms",
    "rounds_before",
    "verdict",
    "closed_ms",
    "next_arrival",
    "empty_since_ms",
    "unknown_past_until_ms",
    "ended_round",
)
_JOB_LISTS = ("history", "runs", "lost", "fences")
_JOB_RECORDED = (
    "run",
    "spec",
    "phase",
    "next_reason",
    "backoff_until_ms",
    "round_number",
    "slots",
    "counts",
    "outcome",
    "drain_requests",
    "launch_id",
    "since_epoch",
    "health",
    "updated",
    "spec_revision",
    "operations",
)
"""What other records say."""
_ROUND_VALUES = (
    "sealed_ms",
    "disrupted_ms",
    "started_ms",
    "any_finished",
    "failure_count",
    "first_failure_ms",
    "drain_first_ms",
    "drain_last_ms",
    "drain_began",
    "start_failure",
    "held_token",
    "durable_step",
    "stop_ms",
    "timeline",
)
_ROUND_LISTS = (
    "succeeded_gone",
    "failures",
    "failure_groups",
    "unlisted_ranks",
    "departures",
    "notices",
    "overdue",
)
_ROUND_RECORDED = ("header", "members", "stop_reason", "stop_note")


class Inexpressible(Exception):
    """A fact has changed that only other records say: a snapshot of the job is needed."""


def find_changes(before: Job, after: Job) -> JobChanges | None:
    """Return what has changed in a job, or None for nothing.

    Args:
        before: the job as other records leave it.
        after: the job as it is; its volatile facts do not matter.

    Raises:
        Inexpressible: when the other records do not say what they should.
    """
    _require_equal(before, after, _JOB_RECORDED)
    changed = _compare(before, after, _JOB_VALUES, _JOB_LISTS)
    if before.round is not after.round:
        if before.round is None or after.round is None:
            raise Inexpressible("round")
        _require_equal(before.round, after.round, _ROUND_RECORDED)
        of_round = _compare(before.round, after.round, _ROUND_VALUES, _ROUND_LISTS)
        if of_round:
            changed["round"] = RoundChanges(**of_round)
    return JobChanges(**changed) if changed else None


def apply_changes(job: Job, changes: JobChanges) -> Job:
    """Return the job with its changes."""
    values = _values_after(job, changes, _JOB_VALUES, _JOB_LISTS)
    if changes.round is not None:
        assert job.round is not None, job.job_id
        of_round = _values_after(job.round, changes.round, _ROUND_VALUES, _ROUND_LISTS)
        values["round"] = replace(job.round, **of_round)
    return replace(job, **values)


def _require_equal(before: Job | Round, after: Job | Round, fields: tuple[str, ...]) -> None:
    for name in fields:
        old, new = getattr(before, name), getattr(after, name)
        if old is not new and old != new:
            raise Inexpressible(name)


def _compare(
    before: Job | Round, after: Job | Round, values: tuple[str, ...], lists: tuple[str, ...]
) -> dict[str, Any]:
    """Return the arguments of a record of the changes; empty when there are none."""
    changed: dict[str, Any] = {}
    cleared: list[str] = []
    for name in values:
        old, new = getattr(before, name), getattr(after, name)
        if old is new or old == new:
            continue
        if new is None:
            cleared.append(name)
        else:
            changed[name] = new
    spliced: list[Splice] = []
    for name in lists:
        old, new = getattr(before, name), getattr(after, name)
        if old is not new and old != new:
            splice = _find_splice(name, old, new)
            spliced.append(splice)
            changed[name] = new[splice.kept :]
    if cleared:
        changed["cleared"] = tuple(cleared)
    if spliced:
        changed["spliced"] = tuple(spliced)
    return changed


def _find_splice(name: str, old: tuple[object, ...], new: tuple[object, ...]) -> Splice:
    """Return what the new list keeps of the old one: its beginning."""
    if not new:
        return Splice(name, 0, 0)
    dropped = next((at for at, one in enumerate(old) if one is new[0] or one == new[0]), len(old))
    kept = 0
    for one, other in zip(old[dropped:], new, strict=False):
        if one is not other and one != other:
            break
        kept += 1
    return Splice(name, dropped, kept)


def _values_after(
    known: Job | Round,
    changes: JobChanges | RoundChanges,
    values: tuple[str, ...],
    lists: tuple[str, ...],
) -> dict[str, Any]:
    """Return the new values of the fields that have changed.

    Raises:
        ValueError: for a field that this version does not know.
    """
    after: dict[str, Any] = {}
    for name in values:
        value = getattr(changes, name)
        if value is not None:
            after[name] = value
    for name in changes.cleared:
        if name not in values:
            raise ValueError(f"unknown field {name}")
        after[name] = None
    for splice in changes.spliced:
        name = splice.field
        if name not in lists:
            raise ValueError(f"unknown list {name}")
        kept = getattr(known, name)[splice.dropped : splice.dropped + splice.kept]
        after[name] = (*kept, *getattr(changes, name))
    return after
