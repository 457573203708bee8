"""What tests of health share: a spec with short times, failures, and an operator's requests."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import NodeHealth
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.step import Transition
from rallypoint.server.core.verdicts.health import find_health
from support.core.coordinator import Bench
from support.core.fake_agents import JOB, FakeAgent

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
    """Let a worker of the node fail, and all agents do what follows."""
    for _ in range(times):
        assert agent.group_rank is not None, f"{agent.identity.name} has no place"
        agent.fail()
        bench.obey()


def with_spare(spec: JobSpec = SPEC) -> tuple[Bench, FakeAgent, FakeAgent, FakeAgent]:
    """Return a bench whose round has the nodes a and b, with c as a spare."""
    bench = Bench(spec)
    a, b = bench.run_round("a", "b")
    (c,) = bench.join("c")
    return bench, a, b, c


def lose(bench: Bench, agent: FakeAgent) -> None:
    """Break a node's connection permanently."""
    agent.break_off()
    bench.advance(500)
