"""Which nodes are silent: their connection broke, or nothing arrives on it any more."""

from __future__ import annotations

from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import State

SILENT_BEATS = 3
"""Heartbeats that are missing before a connected node counts as silent."""
BEAT_MS_MIN = 1_000
"""Of shorter heartbeats, a busy node may miss some."""


def lost_after_ms(state: State, node: Node) -> int | None:
    """Return when a silent node counts as lost, in journal time."""
    kind = DeadlineKind.LEASE if node.attached else DeadlineKind.GRACE
    return state.deadlines.get((kind, node.session))


def find_silent(state: State, job: Job, now_ms: int) -> list[tuple[int, Node]]:
    """Return the silent nodes of a job and for how long they have been, the longest first."""
    patience_ms = SILENT_BEATS * max(BEAT_MS_MIN, state.heartbeat_ms(job.spec))
    soon_ms = now_ms + state.lease_ms(job.spec) - patience_ms
    found = list[tuple[int, Node]]()
    for node in state.nodes_of(job.job_id):
        if node.attached:  # the cheap test decides about most nodes
            ends_ms = state.deadlines.get((DeadlineKind.LEASE, node.session))
            if ends_ms is None or ends_ms >= soon_ms:
                continue
        for_ms = state.silent_ms(node, now_ms)
        if not node.attached or for_ms > patience_ms:
            found.append((for_ms, node))
    return sorted(found, key=lambda one: (-one[0], one[1].arrival))
