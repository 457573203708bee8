"""The desired state of a node, derived from what the coordinator knows.

It is level-triggered: the agent can act on it whatever was sent or lost before, and acts once on a
state that arrives twice.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages.effects import Send
from rallypoint.server.core.model.desired import (
    Desired,
    DesiredFinished,
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
)
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import REQUESTED, RoundReason, describe_request
from rallypoint.server.core.state.draft import Draft


def desired_state(job: Job, node: Node, orders: dict[JobId, DesiredStop] | None = None) -> Desired:
    """Return the desired state of `node` as long as `job` does not change.

    Args:
        job: the node's job.
        node: the node, with the desired state that was sent to it last.
        orders: stops that this step has derived already, by job; all members share one.
    """
    desired = _desired_work(job, node, orders)
    if isinstance(desired, DesiredRun | DesiredStop) and desired.drain != node.drain:
        return replace(desired, drain=node.drain)
    return desired


def _desired_work(job: Job, node: Node, orders: dict[JobId, DesiredStop] | None) -> Desired:
    """Return the desired state of a node, but for its drain."""
    if job.phase is Phase.CLOSED:
        assert job.outcome is not None
        restart_count = job.counts.restart_count
        verdict = None if job.outcome is Outcome.SUCCEEDED else job.verdict
        return DesiredFinished(job.outcome, verdict, restart_count, job.round_number)
    round = job.round
    if node.member and round is not None:
        if job.phase is Phase.RUNNING:
            assert node.assignment is not None  # every member has one
            return DesiredRun(
                round.header,
                node.assignment,
                job.spec.max_restarts,
                held_token=round.held_token,
                reached_at=() if node.assignment.group_rank else round.reached_at,
            )
        # A clean member keeps the stop too, which it already fulfils. A Standby before the next Run
        # would be one more message to every node.
        return _earlier_stop(node, round.header.number) or _order_stop(job, orders)
    if node.state is not NodeState.READY and node.last_round:
        text = "this round is over for this node"
        return _earlier_stop(node, node.last_round) or DesiredStop(
            node.last_round, RoundReason.UNKNOWN, job.spec.shutdown_timeout_ms, text
        )
    if node.drain is not None:
        return DesiredReleased(f"drained: {node.drain.reason}")
    return DesiredStandby(spare=job.phase is Phase.RUNNING)


def _earlier_stop(node: Node, number: int) -> DesiredStop | None:
    """Return the stop of this round if the node already has it: a round is stopped once."""
    last = node.desired
    return last if isinstance(last, DesiredStop) and last.round == number else None


def _order_stop(job: Job, orders: dict[JobId, DesiredStop] | None) -> DesiredStop:
    assert job.round is not None
    order = None if orders is None else orders.get(job.job_id)
    if order is None:
        reason = job.round.stop_reason or RoundReason.UNKNOWN
        text = stop_text(job, reason)
        order = DesiredStop(job.round.header.number, reason, job.spec.shutdown_timeout_ms, text)
        if orders is not None:
            orders[job.job_id] = order
    return order


def stop_text(job: Job, reason: RoundReason) -> str:
    """Return why the round is stopped, as one line."""
    if reason is RoundReason.GROWTH:
        return "new nodes join"
    if reason in REQUESTED:
        return describe_request(_REQUESTS[reason], "" if job.round is None else job.round.stop_note)
    verdict, round = job.verdict, job.round
    is_current = verdict is not None and round is not None and verdict.round == round.header.number
    return verdict.text if verdict is not None and is_current else reason.value


_REQUESTS = {
    RoundReason.RESTART_REQUESTED: "an operator restarts the job",
    RoundReason.RESIZED: "an operator changed the number of nodes",
}


def send_desired(draft: Draft) -> None:
    """Send every touched node its desired state if it has changed."""
    orders: dict[JobId, DesiredStop] = {}
    for session in list(draft.touched):
        node = draft.node(session)
        if node is None:
            continue
        job, previous = draft.require_job(node.job_id), node.desired
        if previous is None and not node.attached:
            continue  # its agent, known from the journal, says with its Hello what it has
        if node.held is not None and job.phase is not Phase.CLOSED:
            continue  # its round may be adopted; until then the node keeps its desired state
        wanted = desired_state(job, node, orders)
        if wanted is not previous and wanted != previous:
            node = replace(node, desired=wanted, revision=node.revision + 1)
            draft.put_node(node)
        elif session not in draft.resend:
            continue
        left_ms = 0 if node.drain is None else max(0, node.drain.until_ms - draft.now_ms)
        draft.effects.append(Send(session, node.revision, wanted, left_ms))
