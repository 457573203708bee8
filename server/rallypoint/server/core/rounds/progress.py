"""Workers report how far training has come, by which a round is judged when it ends.

Steps are many, so few of them are journalled: the first one beyond those of earlier rounds, then
whenever the progress has doubled, one of every half minute, and at the stop. A coordinator that
starts again knows whether the round has advanced, and about how far.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.round import Round
from rallypoint.server.core.rounds.claims import check_claim
from rallypoint.server.core.rounds.hangs import note_step
from rallypoint.server.core.rounds.timelines import find_marks, with_first_step
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.state import RUNNING_MS

GAP_PART = 8
"""The latest gap between two steps counts as this part of the usual one."""


def receive_progress(draft: Draft, report: inputs.Progressed) -> Refusal | None:
    """Note the highest step of the round."""
    job = check_claim(draft, report.claim)
    if isinstance(job, Refusal):
        return job
    assert job.round is not None
    known, step = job.round, report.step
    if step <= known.step:
        return None
    before = job.counts.step
    is_due = step - before >= max(1, 2 * (known.durable_step - before))
    is_due |= draft.now_ms // RUNNING_MS > (known.step_ms or draft.now_ms) // RUNNING_MS
    round = replace(known, step=step, durable_step=step if is_due else known.durable_step)
    round = _with_step_time(round, draft.now_ms - report.step_ago_ms)
    round = with_first_step(round, report.step_ago_ms, draft.now_ms)
    job = replace(job, round=round)
    draft.put_job(job)
    note_step(draft, job)
    if _first_step_ms(known) != _first_step_ms(round):
        _emit_progressed(draft, job.job_id, round)
    return None


def _with_step_time(round: Round, reached_ms: int) -> Round:
    """Return the round whose step was reached then; what readers see decides nothing."""
    before_ms, gap_ms = round.step_ms, round.step_gap_ms
    at_ms = max(reached_ms, round.sealed_ms, before_ms or 0)
    if before_ms is not None:
        latest_ms = at_ms - before_ms
        gap_ms = latest_ms if gap_ms is None else gap_ms + (latest_ms - gap_ms) // GAP_PART
    return replace(round, step_ms=at_ms, step_gap_ms=gap_ms)


def _first_step_ms(round: Round) -> int | None:
    return None if round.timeline is None else round.timeline.first_step_ms


def _emit_progressed(draft: Draft, job_id: JobId, round: Round) -> None:
    assert round.timeline is not None and round.timeline.first_step_ms is not None
    took_ms = round.timeline.first_step_ms - round.timeline.origin_ms
    marks = find_marks(round.timeline)
    draft.emit(job_id, "round_progressed", marks, round=round.header.number, took_ms=took_ms)
