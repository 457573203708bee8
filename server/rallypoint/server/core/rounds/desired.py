"""The one thing that a node has to make true, derived from what the coordinator knows.

Level, not edge: whatever was sent or lost before, this state is enough for the agent to act on, and
sending it twice does nothing twice.
"""

from __future__ import annotations

from rallypoint.server.core.effects import (
    Desired,
    DesiredFinished,
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
    Send,
)
from rallypoint.server.core.model import Activity, Job, JobId, Phase, RoundReason
from rallypoint.server.core.node import Node
from rallypoint.server.core.state import Draft


def desired_state(job: Job, node: Node, orders: dict[JobId, DesiredStop] | None = None) -> Desired:
    """Return what `node` has to make true while `job` is as it is.

    Args:
        job: the node's job.
        node: the node, with what it was told last.
        orders: stops of rounds that this step has worked out already; the same for all members.
    """
    if job.phase is Phase.CLOSED:
        assert job.outcome is not None
        return DesiredFinished(job.outcome, job.verdict, job.restart_count, job.round_number)
    round = job.round
    if node.member and round is not None:
        if job.phase is Phase.RUNNING:
            return DesiredRun(round.header, node.assignment, job.spec.max_restarts)
        # Also for those that are clean already: it is true there, and what comes next is mostly
        # the next Run, so a Standby in between would be one more message to every node.
        return _told_before(node, round.header.number) or _order_stop(job, orders)
    if node.activity is not Activity.READY and node.held_round:
        text = "this round is over for this node"
        return _told_before(node, node.held_round) or DesiredStop(
            node.held_round, RoundReason.UNKNOWN, job.spec.grace_ms, text
        )
    if node.drain is not None:
        return DesiredReleased(f"drained: {node.drain.reason}")
    return DesiredStandby(spare=job.phase is Phase.RUNNING)


def _told_before(node: Node, number: int) -> DesiredStop | None:
    """Return the stop of a round as the node was told it: ordered once, whatever its text."""
    told = node.desired
    return told if isinstance(told, DesiredStop) and told.round == number else None


def _order_stop(job: Job, orders: dict[JobId, DesiredStop] | None) -> DesiredStop:
    assert job.round is not None
    order = None if orders is None else orders.get(job.job_id)
    if order is None:
        reason = job.round.stop_reason or RoundReason.UNKNOWN
        text = stop_text(job, reason)
        order = DesiredStop(job.round.header.number, reason, job.spec.grace_ms, text)
        if orders is not None:
            orders[job.job_id] = order
    return order


def stop_text(job: Job, reason: RoundReason) -> str:
    """Return why the round is stopped, as one line."""
    if reason is RoundReason.GROWTH:
        return "new nodes are taken in"
    return job.verdict.text if job.verdict is not None else reason.value


def tell_nodes(draft: Draft) -> None:
    """Send every touched node its desired state where that has changed."""
    orders: dict[JobId, DesiredStop] = {}
    for session in list(draft.touched):
        node = draft.node(session)
        if node is None:
            continue
        job, previous = draft.the_job(node.job_id), node.desired
        if node.claim is not None and job.phase is not Phase.CLOSED:
            continue  # its round may be adopted: until that is decided, it goes on as it is
        wanted = desired_state(job, node, orders)
        if wanted is not previous and wanted != previous:
            node = node._replace(desired=wanted, revision=node.revision + 1)
            draft.put_node(node)
        elif session not in draft.resend:
            continue
        draft.effects.append(Send(session, node.revision, wanted))
