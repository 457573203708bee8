"""The one thing that a node has to make true, derived from what the coordinator knows.

Level, not edge: whatever was sent or lost before, this state is enough for the agent to act on, and
sending it twice does nothing twice.
"""

from __future__ import annotations

from rallypoint.server.core.effects import (
    Desired,
    DesiredFinished,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
    Send,
)
from rallypoint.server.core.model import Activity, Job, Node, Phase, RoundReason
from rallypoint.server.core.state import Draft


def desired_state(job: Job, node: Node) -> Desired:
    """Return what `node` has to make true while `job` is as it is."""
    if job.phase is Phase.CLOSED:
        assert job.outcome is not None
        return DesiredFinished(job.outcome, job.verdict, job.restart_count, job.round_number)
    round = job.round
    if node.member and round is not None:
        if job.phase is Phase.RUNNING:
            return DesiredRun(round.header, node.assignment, job.spec.max_restarts)
        if node.activity is not Activity.READY:
            reason = round.stop_reason or RoundReason.UNKNOWN
            return DesiredStop(
                round.header.number, reason, job.spec.grace_ms, stop_text(job, reason)
            )
    if node.activity is not Activity.READY and node.held_round:
        text = "this round is over for this node"
        return DesiredStop(node.held_round, RoundReason.UNKNOWN, job.spec.grace_ms, text)
    return DesiredStandby(spare=job.phase is Phase.RUNNING)


def stop_text(job: Job, reason: RoundReason) -> str:
    """Return why the round is stopped, as one line."""
    if reason is RoundReason.GROWTH:
        return "new nodes are taken in"
    return job.verdict.text if job.verdict is not None else reason.value


def tell_nodes(draft: Draft) -> None:
    """Send every touched node its desired state where that has changed."""
    for session in list(draft.touched):
        node = draft.node(session)
        if node is None:
            continue
        job, previous = draft.the_job(node.job_id), node.desired
        if node.claim is not None and job.phase is not Phase.CLOSED:
            continue  # its round may be adopted: until that is decided, it goes on as it is
        wanted = desired_state(job, node)
        if isinstance(wanted, DesiredStop) and isinstance(previous, DesiredStop):
            if wanted.round == previous.round:
                wanted = previous  # a stop is ordered once; only its text could differ
        if wanted != previous:
            node = node._replace(desired=wanted, revision=node.revision + 1)
            draft.put_node(node)
        elif session not in draft.resend:
            continue
        draft.effects.append(Send(session, node.revision, wanted))
