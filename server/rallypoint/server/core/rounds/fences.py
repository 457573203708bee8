"""Until when no round may begin, because workers of an older one may still run somewhere.

With `--fence-after F` an agent has killed its workers F after it sent the last heartbeat that was
acknowledged. The coordinator heard that heartbeat later than it was sent; so workers of a node that
it has not heard for F are dead, and one second more covers what killing takes. That is how long it
waits for a node that was lost while it was not known to be clean.

A node that comes back clean, or leaves, lifts its fence at once. One that comes back with workers
is told to stop them and is waited for anew: it is heard again, so its own time counts anew, too.

A coordinator without memory does not know whom its predecessor had lost. For its first F and a
second it begins no round, unless it adopts one whole: then its predecessor has waited already.
"""

from __future__ import annotations

from dataclasses import replace

from rallypoint.server.core.model import Activity, Fence, Job
from rallypoint.server.core.node import Node
from rallypoint.server.core.state import Draft

SLACK_MS = 1_000
"""What an agent may take to kill, and the coordinator to journal what it heard meanwhile."""
FENCES_MAX = 64
"""Fences that can be lifted one by one; beyond it the oldest are only waited out."""
_CLEAN = (Activity.READY, Activity.SUCCEEDED)
"""What a node was known to be when no worker runs there."""


def fenced_until_ms(job: Job) -> int:
    """Return before when no round of the job may begin; a time in the past means now."""
    return max(job.blind_until_ms, *(fence.until_ms for fence in job.fences), 0)


def fence_lost(draft: Draft, node: Node) -> None:
    """Wait for the workers of a node that is being lost, unless none can run there."""
    fence_ms = draft.the_job(node.job_id).spec.fence_ms
    if fence_ms == 0:
        return
    if node.activity in _CLEAN:
        lift_fence(draft, node)
        return
    # A silent node was heard a lease ago, and leases may have grown since: the shortest counts.
    lease_ms = draft.state.timing.compute_lease_ms(node.identity.spec, sessions=0)
    heard_ms = draft.now_ms if node.broke_ms is None else node.broke_ms
    heard_ms = max(heard_ms, draft.now_ms - lease_ms)
    _raise(draft, node, heard_ms + fence_ms + SLACK_MS)


def fence_unclean(draft: Draft, node: Node) -> None:
    """Wait for the workers of a node that is there, has to stop them, and is in no round."""
    fence_ms = draft.the_job(node.job_id).spec.fence_ms
    if fence_ms and node.activity not in _CLEAN:
        # It may be heard for another lease before it is lost; then its time counts from there.
        _raise(draft, node, draft.now_ms + draft.state.lease_ms(node.identity.spec) + fence_ms)


def lift_fence(draft: Draft, node: Node) -> None:
    """Wait for a node no longer: nothing runs there."""
    job = draft.the_job(node.job_id)
    kept = tuple(fence for fence in job.fences if fence.session != node.session)
    if len(kept) < len(job.fences):
        draft.put_job(replace(job, fences=kept))


def _raise(draft: Draft, node: Node, until_ms: int) -> None:
    job = draft.the_job(node.job_id)
    kept = [
        fence
        for fence in job.fences
        if fence.session != node.session and fence.until_ms > draft.now_ms
    ]
    kept.append(Fence(node.session, node.name, until_ms))
    blind_until_ms = job.blind_until_ms
    if len(kept) > FENCES_MAX:
        blind_until_ms = max(blind_until_ms, kept.pop(0).until_ms)
    draft.put_job(replace(job, fences=tuple(kept), blind_until_ms=blind_until_ms))
