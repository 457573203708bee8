"""Nodes that leave with notice: their workers are notified, then the next round excludes them.

A node announces a drain itself, or an operator requests it. The node's desired state then says so,
and the other members get a notice. From then on no later round includes the node. The running round
continues until a draining member is done or its time is up, and stops once for all of them. If too
few nodes would stay, it continues until the last drain time ends, because no new round could form
earlier.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Notify
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.desired import Drain
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.job import DRAIN_REQUESTS_MAX, DrainRequest, Job
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import LOST_MAX, Departure, Notice, Round, RoundReason
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.tally import Tally


def request_drain(draft: Draft, job: Job, operation: inputs.DrainNode) -> Refusal | None:
    """Drain a node for an operator; after several requests the earliest end counts."""
    job_id, name = operation.job_id, operation.name
    node = draft.holder(job_id, name)
    if node is None or job.phase is Phase.CLOSED:
        facts = (("job_id", job_id), ("node_name", name))
        return Refusal(RefusalKind.UNKNOWN_NODE, facts)
    begin_drain(draft, node, operation.time_ms, operation.reason or "an operator requested it")
    drain = draft.require_node(node.session).drain
    assert drain is not None
    job = draft.require_job(job_id)
    request = DrainRequest(node.name, node.session, drain)
    draft.put_job(replace(job, drain_requests=with_request(job.drain_requests, request)))
    return None


def begin_drain(draft: Draft, node: Node, time_ms: int, reason: str) -> None:
    """Note that a node leaves within `time_ms`; the earliest announced end counts."""
    known = node.drain
    until_ms = draft.now_ms + time_ms
    if known is not None and known.until_ms <= until_ms:
        return
    drain = Drain(until_ms, reason if known is None else known.reason)
    node = replace(node, drain=drain)
    draft.put_node(node)
    job = draft.require_job(node.job_id)
    if job.phase is Phase.RUNNING and _is_busy(node):
        assert job.round is not None
        draft.put_job(replace(job, round=_with_drain(job.round, node.name, drain)))
    if known is None:
        draft.emit(node.job_id, "drain_started", node=node.name, why=drain.reason, time_ms=time_ms)


def _with_drain(round: Round, name: NodeName, drain: Drain) -> Round:
    others = tuple(notice for notice in round.notices if notice.name != name)
    first_ms = round.drain_first_ms
    return replace(
        round,
        notices=(*others, Notice(name, drain.until_ms, drain.reason))[:LOST_MAX],
        drain_first_ms=drain.until_ms if first_ms is None else min(first_ms, drain.until_ms),
        drain_last_ms=max(round.drain_last_ms, drain.until_ms),
    )


def without_drain_of(draft: Draft, round: Round, node: Node) -> Round:
    """Return a running round without the drain of a member that has succeeded."""
    left = [
        Notice(other.name, other.drain.until_ms, other.drain.reason)
        for other in draft.nodes_of(node.job_id)
        if other.drain is not None and _is_busy(other) and other.session != node.session
    ]
    return replace(
        round,
        notices=tuple(left[:LOST_MAX]),
        drain_first_ms=min((notice.until_ms for notice in left), default=None),
        drain_last_ms=max((notice.until_ms for notice in left), default=0),
    )


def _is_busy(node: Node) -> bool:
    """Return whether the node is a member whose part in the round is not done."""
    return node.member and node.state is not NodeState.SUCCEEDED


def drain_due_ms(job: Job, tally: Tally) -> int | None:
    """Return when the running round is stopped for its draining members, or None for never."""
    round = job.round
    assert round is not None
    if round.drain_first_ms is None:
        return None
    return round.drain_first_ms if can_go_on(job, tally) else round.drain_last_ms


def can_go_on(job: Job, tally: Tally) -> bool:
    """Return whether enough nodes would stay for another round."""
    return tally.available >= job.spec.min_nodes


def is_held(job: Job, tally: Tally, now_ms: int) -> bool:
    """Return whether the round continues although draining members have left.

    It does when too few nodes would stay and another draining member still has time.
    """
    round = job.round
    assert round is not None
    if any(departure.reason is not RoundReason.DRAINED for departure in round.departures):
        return False
    return tally.draining > 0 and now_ms < round.drain_last_ms and not can_go_on(job, tally)


def reason_of_leaving(node: Node) -> RoundReason:
    """Return the reason for the departure of a node that leaves on purpose."""
    return RoundReason.NODE_LEFT if node.drain is None else RoundReason.DRAINED


def note_first_exit(round: Round, node: Node, now_ms: int) -> Round:
    """Note that a draining member's workers are exiting, so connections to them break now.

    After a stop, workers end because of the stop. Their exits explain nothing.
    """
    if node.drain is None or round.drain_began is not None or round.stop_ms is not None:
        return round
    departure = Departure(node.name, now_ms, RoundReason.DRAINED, node.drain.reason)
    return replace(round, drain_began=departure)


def resume_drain_request(draft: Draft, node: Node) -> None:
    """Drain an agent that returns if a request for it is open.

    A request is for one agent. It ends when another agent takes the name.
    """
    requests = draft.require_job(node.job_id).drain_requests
    request = next((request for request in requests if request.name == node.name), None)
    if request is None:
        return
    if request.session != node.session:
        end_drain_request(draft, node)
        return
    left_ms = max(0, request.drain.until_ms - draft.now_ms)
    begin_drain(draft, node, left_ms, request.drain.reason)


def end_drain_request(draft: Draft, node: Node) -> None:
    """Forget the drain request for the agent of this name, if there is one."""
    job = draft.require_job(node.job_id)
    left = without_request(job.drain_requests, node.name)
    if left != job.drain_requests:
        draft.put_job(replace(job, drain_requests=left))


def with_request(
    known: tuple[DrainRequest, ...], request: DrainRequest
) -> tuple[DrainRequest, ...]:
    """Return the requests with `request` as the latest; the oldest is dropped beyond the limit."""
    return (*without_request(known, request.name), request)[-DRAIN_REQUESTS_MAX:]


def without_request(known: tuple[DrainRequest, ...], name: NodeName) -> tuple[DrainRequest, ...]:
    """Return the requests for all other names."""
    return tuple(request for request in known if request.name != name)


def notify(draft: Draft, node: Node) -> None:
    """Send one node the notices of its round."""
    timed = tuple(
        (notice, max(0, notice.until_ms - draft.now_ms))
        for notice in _notices_for(draft.require_job(node.job_id), node)
    )
    draft.effects.append(Notify(node.session, timed))


def has_notices(draft: Draft, node: Node) -> bool:
    """Return whether there is a notice for the node."""
    return bool(_notices_for(draft.require_job(node.job_id), node))


def _notices_for(job: Job, node: Node) -> tuple[Notice, ...]:
    """Return the notices of the node's round; its own drain is part of its desired state."""
    notices = () if job.round is None or not node.member else job.round.notices
    return tuple(notice for notice in notices if notice.name != node.name)


def announce_drain(draft: Draft, node: Node) -> None:
    """Add a member's drain to a round that was adopted."""
    job = draft.require_job(node.job_id)
    if node.drain is not None and _is_busy(node) and job.round is not None:
        draft.put_job(replace(job, round=_with_drain(job.round, node.name, node.drain)))
