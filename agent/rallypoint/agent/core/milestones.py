"""Milestones of workers: the agent reports each once, when the last worker of the node reaches it.

So a round costs the coordinator one message per node and milestone, however many workers there are.
What the workers have reached belongs to the held round: each Hello repeats it, and a coordinator
that has started again learns it.

What a worker says is checked: its round and rank have to exist, and it reached nothing in the
future or before it was started.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.agent.core.inputs import MilestoneReached
from rallypoint.agent.core.reports import ReachedReport
from rallypoint.agent.core.work import Work


def reach(work: Work, reached: MilestoneReached) -> None:
    """Note that a worker has reached a milestone; its first word about each one counts."""
    held = work.state.held
    if held is None or held.number != reached.round or held.is_stopping:
        return
    if not 0 <= reached.local_rank < len(held.workers):
        return
    worker = held.workers[reached.local_rank]
    if worker.reached_ms(reached.milestone) is not None:
        return
    at_ms = min(work.now_ms, max(worker.started_ms, reached.at_ms))
    milestones = (*worker.milestones, (reached.milestone, at_ms))
    held = held.with_worker(replace(worker, milestones=milestones))
    work.hold(held)
    last_ms = held.reached_ms(reached.milestone)
    if last_ms is not None:
        work.report(ReachedReport(held.number, reached.milestone, last_ms))
