"""What tests of health share: a spec with short times, failures, and what an operator asks."""

from __future__ import annotations

from dataclasses import replace

from rallypoint.server.core import inputs
from rallypoint.server.core.health import find_health
from rallypoint.server.core.model import JobId, JobSpec, NodeHealth, NodeName
from rallypoint.server.core.step import Transition
from support.coordinator import Bench
from support.fake_agents import JOB, FakeAgent

WINDOW_MS = 60_000
COOLDOWN_MS = 20_000
SPEC = JobSpec(
    min_nodes=2,
    max_nodes=2,
    max_restarts=50,
    crash_loop=0,
    restart_backoff_ms=0,
    max_reformations=50,
    quarantine_after=3,
    quarantine_window_ms=WINDOW_MS,
    quarantine_cooldown_ms=COOLDOWN_MS,
)
WIDE = replace(SPEC, min_nodes=1, max_nodes=4)
SICK = NodeName("sick")


def health(bench: Bench, name: str) -> NodeHealth:
    return find_health(bench.job().health, NodeName(name))


def cordon(bench: Bench, name: str, reason: str = "bad disk", job_id: str = JOB) -> Transition:
    return bench.take(inputs.Cordon(JobId(job_id), NodeName(name), reason))


def uncordon(bench: Bench, name: str, job_id: str = JOB) -> Transition:
    return bench.take(inputs.Uncordon(JobId(job_id), NodeName(name)))


def fail_again(bench: Bench, agent: FakeAgent, times: int) -> None:
    """Let a worker of the node fail, and everybody do what follows."""
    for _ in range(times):
        assert agent.group_rank is not None, f"{agent.identity.name} has no place"
        agent.fail()
        bench.obey()


def with_spare(spec: JobSpec = SPEC) -> tuple[Bench, FakeAgent, FakeAgent, FakeAgent]:
    """Return a bench whose round has the nodes a and b, and c to spare."""
    bench = Bench(spec)
    a, b = bench.run_round("a", "b")
    (c,) = bench.join("c")
    return bench, a, b, c


def lose(bench: Bench, agent: FakeAgent) -> None:
    """Let a node's connection break for good."""
    agent.break_off()
    bench.advance(500)
