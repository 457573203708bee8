"""Keys are dropped with what they belong to.

Like barriers, `drop_keys` looks at a job's facts after every step that touched it. It does not
matter which input ended a round or a run.
"""

from __future__ import annotations

from rallypoint.server.core.messages.records import KeysDropped
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.rounds.claims import is_round_over
from rallypoint.server.core.state.draft import Draft


def drop_keys(draft: Draft, job_id: JobId) -> None:
    """Drop the keys of a round or run that is over."""
    space = draft.state.keys.get(job_id)
    if space is None:
        return
    job = draft.job(job_id)
    if job is None or job.phase is Phase.CLOSED or job.run != space.run:
        draft.change_keys(KeysDropped(job_id, space.run))
    elif is_round_over(job, space.round):
        draft.change_keys(KeysDropped(job_id, space.run, space.round))
