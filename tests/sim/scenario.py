"""Who takes part in one seed: jobs, their specs, and the nodes that come for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from rallypoint.server.core.model import JobId, JobSpec

JOBS_MAX = 3
NODES_MAX = 6
WORKERS_MAX = 3
DRAIN_MS_MAX = 8_000


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node, and how agents are started on it."""

    job_id: JobId
    name: str
    explicit: bool
    """The name was given, so it may not be changed to a free one."""
    address: str
    workers: int
    role: str
    node_rank: int | None
    spec: JobSpec
    """Differs from that of the others on a node that was started with other flags."""
    launch_id: str
    coordinator_timeout_ms: int
    drain_ms: int
    """How long its workers go on after a SIGTERM to the agent."""
    starts_ms: int
    """When its first agent starts; later than the end of the faults: only if a fault does it."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job."""

    job_id: JobId
    spec: JobSpec
    work_ms: int | None
    """How long workers work once all of their round run; None: until the faults are over."""
    is_doomed: bool
    """Every round dies young and in the same way, until faults stop."""
    nodes: tuple[NodePlan, ...]


def draw_jobs(rng: Random) -> tuple[JobPlan, ...]:
    """Return the jobs of one seed."""
    count = rng.choice((1, 1, 1, 2, JOBS_MAX))
    return tuple(_draw_job(rng, number) for number in range(count))


def _draw_job(rng: Random, number: int) -> JobPlan:
    job_id = JobId(f"job{number}")
    high = rng.randint(1, NODES_MAX - 1)
    low = rng.randint(1, high)
    spec = JobSpec(
        min_nodes=low,
        max_nodes=high,
        max_restarts=rng.choice((0, 1, 3, 20)),
        join_timeout_ms=rng.choice((8_000, 20_000)),
        last_call_ms=rng.choice((0, 300, 1_500)),
        settle_ms=rng.choice((0, 300, 1_500)),
        grow_after_ms=rng.choice((200, 1_500)),
        grow=rng.random() < 0.8,
        grace_ms=rng.choice((200, 1_000, 3_000)),
        restart_backoff_ms=rng.choice((0, 100)),
        no_retry=rng.choice(((), (), (17,))),
        quarantine_after=rng.choice((0, 1, 2, 3)),
        quarantine_window_ms=rng.choice((3_000, 60_000)),
        quarantine_cooldown_ms=rng.choice((500, 5_000)),
    )
    if not spec.no_retry:
        spec = replace(spec, no_requeue=rng.choice(((), (), (17,))))
    if rng.random() < 0.4:
        spec = replace(spec, fence_ms=spec.grace_ms + rng.choice((3_000, 3_000, 3_000, 9_000)))
    nodes = rng.randint(low, min(high + 2, NODES_MAX))
    same_workers = rng.random() < 0.6
    workers = rng.randint(1, WORKERS_MAX)
    explicit = rng.random() < 0.6
    ranked = rng.random() < 0.2
    launch_id = rng.choice(("", "", f"launch-{number}"))
    timeout_ms = rng.choice((10_000, 25_000))
    plans = tuple(
        NodePlan(
            job_id=job_id,
            name=f"n{node}" if explicit or rng.random() < 0.5 else "host",
            explicit=explicit,
            address=f"10.{number}.0.{node + 1}",
            workers=workers if same_workers else rng.randint(1, WORKERS_MAX),
            role="default" if same_workers or rng.random() < 0.5 else "reader",
            node_rank=node if ranked else None,
            spec=spec if rng.random() < 0.99 else replace(spec, max_restarts=7),
            launch_id=launch_id,
            coordinator_timeout_ms=timeout_ms,
            drain_ms=rng.choice((0, rng.randint(100, DRAIN_MS_MAX))),
            starts_ms=rng.randint(0, 2_500) if rng.random() < 0.8 else rng.randint(0, 30_000),
        )
        for node in range(nodes)
    )
    work_ms = rng.choice((None, None, rng.randint(500, 30_000)))
    return JobPlan(job_id, spec, work_ms, rng.random() < 0.05, plans)
