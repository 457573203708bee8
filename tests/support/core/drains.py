"""What tests of drains share: the request, the notices, and the node that leaves."""

from __future__ import annotations

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Notify, Send
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.desired import DesiredRun, DesiredStop
from rallypoint.server.core.model.ids import JobId, NodeName
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, FakeAgent, worker_exit

DRAIN_MS = 20_000


LEFT = worker_exit(0, prompted=True)
"""The exit of a worker that got the drain signal."""


def ask(bench: Bench, name: str, time_ms: int = DRAIN_MS) -> RefusalKind | None:
    """Request the drain of a node as an operator; return the refusal, or None."""
    request = inputs.DrainNode(JobId(JOB), NodeName(name), time_ms, "maintenance")
    refusal = bench.take(request).refusal
    return None if refusal is None else refusal.kind


def notices(bench: Bench, agent: FakeAgent) -> list[tuple[str | None, int]]:
    """Return the latest notices of an agent: the node that leaves, and the ms left."""
    found = [e for e in bench.effects if isinstance(e, Notify) and e.session == agent.session]
    return [(notice.name, left_ms) for notice, left_ms in found[-1].notices] if found else []


def wanted(bench: Bench, agent: FakeAgent) -> tuple[str, int] | None:
    """Return the drain in an agent's latest desired state: why, and the ms left; None: none."""
    sent = [e for e in bench.effects if isinstance(e, Send) and e.session == agent.session]
    desired = sent[-1].desired
    drain = desired.drain if isinstance(desired, DesiredRun | DesiredStop) else None
    return None if drain is None else (drain.reason, sent[-1].drain_left_ms)


def go(agent: FakeAgent) -> None:
    """Let the workers of a draining node finish, and the node leave."""
    agent.exit(LEFT)
    agent.leave("done")
    agent.goodbye("done")
