"""Workers report how far training has come, by which a round is judged when it ends."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.rounds.claims import check_claim
from rallypoint.server.core.state.draft import Draft


def receive_progress(draft: Draft, report: inputs.Progressed) -> Refusal | None:
    """Note the highest step of the round. It is journalled with the end of the round."""
    job = check_claim(draft, report.claim)
    if isinstance(job, Refusal):
        return job
    assert job.round is not None
    if report.step > job.round.step:
        draft.put_job(replace(job, round=replace(job.round, step=report.step)))
    return None
