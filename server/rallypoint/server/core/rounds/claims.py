"""Who may speak for a round: a worker that holds the token of the round that runs.

What belongs to a round ends with it. Workers may read their job for a little longer: while the next
round forms, they may still look why theirs has ended.
"""

from __future__ import annotations

import hmac

from rallypoint.server.core.messages.inputs import Claim
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind, unknown_job
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.state import State

READABLE_ROUNDS = 2
"""Workers of so many of the latest rounds may read their job."""


def check_claim(draft: Draft, claim: Claim) -> Job | Refusal:
    """Return the job that the claim is about, or why it is refused.

    A token of this coordinator is proof. After a restart without memory, the round that was adopted
    is proven by the token that its members hold.
    """
    job = draft.job(claim.job_id)
    round = None if job is None else job.round
    held = "" if round is None else round.held_token
    is_adopted = bool(held) and hmac.compare_digest(held.encode(), claim.token.encode())
    if not claim.is_signed and not is_adopted:
        is_early = draft.awaits_adoption(claim.job_id)
        return Refusal(RefusalKind.NOT_READY if is_early else RefusalKind.TOKEN_REFUSED)
    if job is None:
        return unknown_job(claim.job_id)
    if claim.run != job.run:
        return _stale(RefusalKind.RUN_OVER, job.run, claim.run)
    if round is None or round.header.number != claim.round or job.phase is not Phase.RUNNING:
        return _stale(RefusalKind.OLD_ROUND, job.round_number, claim.round)
    return job


def may_read(state: State, job_id: JobId, run: int, number: int) -> bool:
    """Return whether workers of a round may read their job.

    Not once their run is over, and not when no agent takes part in it any more: their own may have
    been shut out.
    """
    job = state.jobs.get(job_id)
    if job is None or job.phase is Phase.CLOSED or job.run != run:
        return False
    return bool(state.sessions.get(job_id)) and number > job.round_number - READABLE_ROUNDS


def is_round_over(job: Job, number: int) -> bool:
    """Return whether what belongs to this round is over; 0: it belongs to the run."""
    is_held = job.round is not None and job.round.header.number == number
    return number > 0 and not (is_held and job.phase is Phase.RUNNING)


def _stale(kind: RefusalKind, expected: int, actual: int) -> Refusal:
    return Refusal(kind, (("expected", expected), ("actual", actual)))
