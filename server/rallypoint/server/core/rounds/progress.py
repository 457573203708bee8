"""Workers report how far training has come, by which a round is judged when it ends.

Steps are many, so few of them are journalled: the first one beyond those of earlier rounds, then
whenever the progress has doubled, and at the stop. A coordinator that starts again knows whether
the round has advanced, and about how far.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.rounds.claims import check_claim
from rallypoint.server.core.state.draft import Draft


def receive_progress(draft: Draft, report: inputs.Progressed) -> Refusal | None:
    """Note the highest step of the round."""
    job = check_claim(draft, report.claim)
    if isinstance(job, Refusal):
        return job
    assert job.round is not None
    round, step = job.round, report.step
    if step > round.step:
        before = job.counts.step
        is_due = step - before >= max(1, 2 * (round.durable_step - before))
        durable_step = step if is_due else round.durable_step
        round = replace(round, step=step, durable_step=durable_step)
        draft.put_job(replace(job, round=round))
    return None
