"""Fences: until when no round may begin, because workers of an older one may still run.

With `--fence-after F` an agent has killed its workers F after it sent the last heartbeat that was
acknowledged. The coordinator received that heartbeat later than it was sent. So the workers of a
node that was silent for F are dead, and one more second covers the time that killing takes. The
coordinator waits that long for a lost node that may not be clean.

A node that returns clean, or leaves, lifts its fence at once. A node that returns with workers has
to stop them. The wait for it starts again, because its own timer does too.

A coordinator without memory does not know which nodes its predecessor lost. It begins no round for
its first F plus one second, unless it adopts a complete round: then its predecessor has already
waited.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.model.job import Fence, Job
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.state.draft import Draft

SLACK_MS = 1_000
"""Time for the agent to kill, and for the coordinator to journal messages that arrive meanwhile."""
FENCES_MAX = 64
"""Fences that can be lifted one by one; beyond that the oldest one cannot be lifted."""
_CLEAN = (NodeState.READY, NodeState.SUCCEEDED)
"""States of a node on which no worker runs."""


def fenced_until_ms(job: Job) -> int:
    """Return when the next round of the job may begin; a time in the past means now."""
    return max(job.unknown_past_until_ms, *(fence.until_ms for fence in job.fences), 0)


def fence_lost(draft: Draft, node: Node) -> None:
    """Fence a node that is being lost, unless no worker can run there."""
    fence_after_ms = draft.require_job(node.job_id).spec.fence_after_ms
    if fence_after_ms == 0:
        return
    if node.state in _CLEAN:
        lift_fence(draft, node)
        return
    # A silent node was heard a lease ago, and leases may have grown since: the shortest counts.
    lease_ms = draft.state.timing.compute_lease_ms(node.identity.spec, sessions=0)
    heard_ms = draft.now_ms if node.broke_ms is None else node.broke_ms
    heard_ms = max(heard_ms, draft.now_ms - lease_ms)
    _raise(draft, node, heard_ms + fence_after_ms + SLACK_MS)


def fence_unclean(draft: Draft, node: Node) -> None:
    """Fence a node that is attached, belongs to no round and still has workers to stop."""
    fence_after_ms = draft.require_job(node.job_id).spec.fence_after_ms
    if fence_after_ms and node.state not in _CLEAN:
        # It may send for another lease before it is lost; its time counts from then.
        _raise(
            draft, node, draft.now_ms + draft.state.lease_ms(node.identity.spec) + fence_after_ms
        )


def lift_fence(draft: Draft, node: Node) -> None:
    """Drop the fence of a node: nothing runs there."""
    job = draft.require_job(node.job_id)
    kept = tuple(fence for fence in job.fences if fence.session != node.session)
    if len(kept) < len(job.fences):
        draft.put_job(replace(job, fences=kept))


def _raise(draft: Draft, node: Node, until_ms: int) -> None:
    job = draft.require_job(node.job_id)
    kept = [
        fence
        for fence in job.fences
        if fence.session != node.session and fence.until_ms > draft.now_ms
    ]
    kept.append(Fence(node.session, node.name, until_ms))
    unknown_past_until_ms = job.unknown_past_until_ms
    if len(kept) > FENCES_MAX:
        unknown_past_until_ms = max(unknown_past_until_ms, kept.pop(0).until_ms)
    draft.put_job(replace(job, fences=tuple(kept), unknown_past_until_ms=unknown_past_until_ms))
