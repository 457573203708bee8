"""What jobs wait for, explained once for all who ask within a moment.

It takes 5 ms to explain a job of 4,096 nodes. A reader may ask for it hundreds of times at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from msgspec import Struct

from rallypoint.server.contract.mappers import AWAITED_NODE, WAITING
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import JOBS_MAX, Job, WaitKind
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.reads.explain import Awaited, Waiting, explain, state_of_kept_out
from rallypoint.server.core.state.state import State
from rallypoint.server.core.verdicts.health import find_health, why_kept_out
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration

EXPLAINED_MS = 200
"""How long an explanation is reused for others who ask about the same job."""
NODES_PER_EXPLAINED_MS = 4
"""For so many nodes it is reused one ms longer."""

Explain = Callable[[State, Job, int], Waiting | None]
"""Returns what a job waits for at a journal time."""


class Explained(Struct, frozen=True, dict=True):
    """What a job waited for a moment ago."""

    at_ms: int
    revision: int
    """Of the job then."""
    waiting: Waiting | None

    @cached_property
    def message(self) -> job_pb2.Waiting | None:
        """The same as agents get it, made once for all of them; it must not be changed.

        No agent waits at a barrier: its workers do.
        """
        if self.waiting is None or self.waiting.kind is WaitKind.BARRIER:
            return None
        return WAITING.to_message(self.waiting)


class Explanations:
    """The latest explanation of each job that was asked about."""

    def __init__(self) -> None:
        """Begin without explanations."""
        self._explained: dict[JobId, Explained] = {}

    def explain(self, state: State, job: Job, now_ms: int) -> Waiting | None:
        """Return what a job waits for, of a moment ago unless readers see a change since then.

        A reader that has changed the job sees what it has done.
        """
        known = self.find(state, job.job_id, now_ms)
        if known is None or known.revision != state.revision_of(job.job_id):
            known = self.renew(state, job, now_ms)
        return known.waiting

    def find(self, state: State, job_id: JobId, now_ms: int) -> Explained | None:
        """Return what a job waited for a moment ago, if it was explained then."""
        known = self._explained.get(job_id)
        nodes = len(state.sessions.get(job_id, ()))
        reused_ms = EXPLAINED_MS + nodes // NODES_PER_EXPLAINED_MS
        return known if known is not None and 0 <= now_ms - known.at_ms < reused_ms else None

    def renew(self, state: State, job: Job, now_ms: int) -> Explained:
        """Explain a job again."""
        waiting = explain(state, job, now_ms)
        known = Explained(now_ms, state.revision_of(job.job_id), waiting)
        if job.job_id not in self._explained and len(self._explained) >= JOBS_MAX:
            self._explained.clear()
        self._explained[job.job_id] = known
        return known


def kept_out_message(job: Job, node: Node, now_ms: int) -> job_pb2.Waiting:
    """Return why the running round does not include a quarantined or cordoned node."""
    health = find_health(job.health, node.name)
    why = why_kept_out(health, now_ms)
    left_ms = health.quarantined_until_ms - now_ms
    text = f"this node is kept out of rounds: {why}"
    if not health.cordoned:
        text += f"; {health.reason}"
    return job_pb2.Waiting(
        kind=job_pb2.WAIT_KIND_SPARE,
        nodes=[AWAITED_NODE.encode(Awaited(node.name, state_of_kept_out(health), why, None))],
        time_left=None if health.cordoned else to_duration(max(0, left_ms)),
        text=text,
    )
