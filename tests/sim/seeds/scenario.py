"""The jobs of one seed, their specifications, and their nodes."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as changed
from random import Random

from msgspec.structs import replace

from rallypoint.base.limits import BEATS_PER_LEASE, LEASE_MS_MIN
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.node import Program
from rallypoint.server.core.model.spec import HangAction, JobSpec, Timing
from sim.seeds.faults import Faults, Feature

OTHER_RESTARTS = 7
"""The budget of nodes that were started with other flags; no job draws it."""
OTHER_FLAGS_SHARE = 0.06
"""Of the nodes of a seed with that feature: those with another specification, or program."""
DRAIN_MS_MAX = 8_000


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node, and how agents are started on it."""

    job_id: JobId
    name: str
    explicit: bool
    """The name was given: the coordinator may not change it."""
    address: str
    workers: int
    role: str
    node_rank: int | None
    spec: JobSpec
    """Differs from that of the others on a node that was started with other flags."""
    launch_id: str
    coordinator_timeout_ms: int
    drain_ms: int
    """How long its workers run after a SIGTERM to the agent."""
    starts_ms: int
    """When its first agent starts; after the end of the faults: only if a fault starts it."""
    program: Program | None = None
    """What its workers run; None: its agents do not say."""
    labels: tuple[tuple[str, str], ...] = ()
    """Of its operator, by name."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job."""

    job_id: JobId
    spec: JobSpec
    work_ms: int | None
    """How long workers work once all of their round run; None: until the faults are over."""
    is_doomed: bool
    """Every round fails early and in the same way, until faults stop."""
    nodes: tuple[NodePlan, ...]


def draw_jobs(rng: Random, options: Faults) -> tuple[JobPlan, ...]:
    """Return the jobs of one seed."""
    count = min(rng.choice((1, 1, 1, 2, 3)), options.jobs_max)
    if options.owners:  # enough for several shards
        count = min(rng.choice((2, 3, 4, 6)), 2 * options.jobs_max)
    return tuple(_draw_job(rng, number, options) for number in range(count))


def _draw_job(rng: Random, number: int, options: Faults) -> JobPlan:
    job_id = JobId(f"job{number}")

    def uses(feature: Feature, share: float) -> bool:
        """Return whether the job, or a node, uses a feature: in this share of the cases."""
        return feature in options.features and rng.random() < share

    high = rng.randint(1, options.nodes_max - 1)
    low = rng.randint(1, high)
    spec = JobSpec(
        min_nodes=low,
        max_nodes=high,
        max_restarts=rng.choice((0, 1, 3, 20)),
        join_timeout_ms=rng.choice((8_000, 20_000)),
        last_call_ms=rng.choice((0, 300, 1_500)),
        settle_time_ms=rng.choice((0, 300, 1_500)),
        grow_after_ms=rng.choice((200, 1_500)),
        grow=not uses(Feature.NO_GROWTH, 0.4),
        shutdown_timeout_ms=rng.choice((200, 1_000, 3_000)),
        restart_backoff_ms=rng.choice((0, 100)),
        quarantine_after=0,
    )
    if uses(Feature.EXIT_CODES, 0.6):
        is_final = rng.random() < 0.5
        spec = (
            replace(spec, no_retry_exit_codes=(17,))
            if is_final
            else replace(spec, no_requeue_exit_codes=(17,))
        )
    if uses(Feature.QUARANTINE, 0.9):
        spec = replace(
            spec,
            quarantine_after=rng.choice((1, 2, 3)),
            quarantine_window_ms=rng.choice((3_000, 60_000)),
            quarantine_cooldown_ms=rng.choice((500, 5_000)),
        )
    if uses(Feature.OWN_LEASE, 0.8):
        spec = replace(
            spec,
            heartbeat_interval_ms=rng.choice((0, 100, 500, 2_000)),
            lease_ms=rng.choice((0, LEASE_MS_MIN, LEASE_MS_MIN, 3_000, 15_000)),
        )
    if uses(Feature.FENCE, 0.8):
        beyond_ms = BEATS_PER_LEASE * Timing().compute_heartbeat_ms(spec, sessions=0)
        beyond_ms = max(beyond_ms, rng.choice((3_000, 3_000, 3_000, 9_000)))
        spec = replace(spec, fence_after_ms=spec.shutdown_timeout_ms + beyond_ms)
    spec = _with_hangs(spec, job_id)
    nodes = rng.randint(low, min(high + 2, options.nodes_max))
    is_unequal = uses(Feature.UNEQUAL_NODES, 0.8)
    workers = rng.randint(1, options.workers_max)
    explicit = uses(Feature.GIVEN_NAMES, 0.9)
    ranked = uses(Feature.NODE_RANKS, 0.4)
    launch_id = f"launch-{number}" if uses(Feature.LAUNCH_ID, 0.7) else ""
    drains = uses(Feature.DRAIN_TIME, 0.9)
    timeout_ms = rng.choice((10_000, 25_000))
    plans = tuple(
        NodePlan(
            job_id=job_id,
            name=f"n{node}" if explicit or rng.random() < 0.5 else "host",
            explicit=explicit,
            address="127.0.0.1"
            if uses(Feature.OTHER_ADDRESS, 0.01)
            else f"10.{number}.0.{node + 1}",
            workers=rng.randint(1, options.workers_max) if is_unequal else workers,
            role="reader" if is_unequal and rng.random() < 0.5 else "default",
            node_rank=node if ranked else None,
            spec=replace(spec, max_restarts=OTHER_RESTARTS)
            if uses(Feature.OTHER_FLAGS, OTHER_FLAGS_SHARE)
            else spec,
            launch_id=launch_id,
            coordinator_timeout_ms=timeout_ms,
            drain_ms=rng.choice((0, rng.randint(100, DRAIN_MS_MAX))) if drains else 0,
            starts_ms=rng.randint(0, 30_000 if uses(Feature.LATE_NODES, 0.4) else 2_500),
        )
        for node in range(nodes)
    )
    share = OTHER_FLAGS_SHARE if Feature.OTHER_FLAGS in options.features else 0.0
    plans = _draw_programs(plans, share)
    work_ms = rng.randint(500, 30_000) if uses(Feature.WORK_ENDS, 0.6) else None
    return JobPlan(job_id, spec, work_ms, uses(Feature.DOOMED, 0.1), plans)


def _with_hangs(spec: JobSpec, job_id: JobId) -> JobSpec:
    """Return the specification with what counts as a hang, and what follows.

    Drawn from the rest of it: everything else in a seed stays as it is.
    """
    rng = Random(f"{job_id} {spec} hangs")
    after_ms = rng.choice((1_500, 3_000, 6_000))
    return replace(
        spec,
        hang_after_ms=after_ms,
        hang_first_after_ms=after_ms,
        hang_action=rng.choice(tuple(HangAction)),
    )


def _draw_programs(plans: tuple[NodePlan, ...], share: float) -> tuple[NodePlan, ...]:
    """Return the same nodes with their programs; this share runs another one, or may do so.

    Drawn from the plans, not from the seed's generator: everything else in a seed stays as it is.
    """
    rng = Random(repr(plans))
    return tuple(
        changed(
            plan,
            program=Program(
                "other.py" if rng.random() < share else "train.py",
                arguments_digest=rng.choice(("", "", "0a")),
                may_differ=rng.random() < share,
                command_line=rng.choice(("", "train.py --lr 0.1", "train.py 'größe'")),
                user=rng.choice(("", "ada")),
            ),
            labels=rng.choice(((), (("rack", "r1"), ("zone", "b")))),
        )
        for plan in plans
    )
