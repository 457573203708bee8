"""What one seed is made of: its jobs, their nodes, and the faults that they meet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from rallypoint.base.limits import FENCE_BEYOND_SHUTDOWN_MS
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration


class Fault(Enum):
    """What can go wrong at an instant."""

    SEVER = "sever"  # one stream breaks; each side learns of it now, later or never
    PARTITION = "partition"  # nothing passes between a node and the coordinator for a while
    DEAF = "deaf"  # a node does not read for a while: the window fills up
    FAIL_WORKER = "fail worker"
    FAIL_AWAY = "fail away"  # a worker fails while the stream of its node is down
    KILL_AGENT = "kill agent"
    FREEZE_AGENT = "freeze agent"
    TERMINATE = "terminate"  # SIGTERM to an agent
    DRAIN = "drain"  # an operator drains a node
    LOSE_HELPER = "lose helper"
    START_AGENT = "start agent"
    READ = "read"  # someone asks for a job
    CRASH = "crash"  # kill -9 of the coordinator; another one starts
    BLACKOUT = "blackout"  # its host dies: no stream is reset
    STOP = "stop"  # SIGTERM to the coordinator
    STALL = "stall"  # the coordinator stands still for a while


ALL_JOBS = frozenset({Fault.CRASH, Fault.BLACKOUT, Fault.STOP, Fault.STALL})
"""Faults that concern every job."""
LASTS_S = {
    Fault.SEVER: 7.0,
    Fault.PARTITION: 15.0,
    Fault.DEAF: 15.0,
    Fault.FAIL_WORKER: 0.0,
    Fault.FAIL_AWAY: 7.0,
    Fault.KILL_AGENT: 7.0,
    Fault.FREEZE_AGENT: 15.0,
    Fault.TERMINATE: 7.0,
    Fault.DRAIN: 3.0,
    Fault.LOSE_HELPER: 1.0,
    Fault.START_AGENT: 0.0,
    Fault.READ: 0.0,
    Fault.CRASH: 10.0,
    Fault.BLACKOUT: 10.0,
    Fault.STOP: 10.0,
    Fault.STALL: 10.0,
}
"""How long the job may notice a fault, at most: its time, a lease and the longest back-off."""
PUSH_S = 0.25
"""How long news take at most in an undisturbed job. Longer than messages take; less than the time
between heartbeats or pulses of the coordinator, which would hide that a wake-up was forgotten."""
SLOW_S = 0.55
"""How much longer that is while the coordinator takes long for each step."""
LONELY_SHARE = 0.25
"""Share of the seeds with one kind of fault, which happens seldom: its effects are seen alone."""
MILD_SHARE = 0.25
"""Share of the seeds in which only workers fail, and perhaps the coordinator stands still."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node, and how agents are started on it."""

    job_id: str
    name: str
    workers: int
    starts_s: float
    drain_ms: int
    """How long its workers run after a SIGTERM to the agent."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job."""

    job_id: str
    spec: job_pb2.JobSpec
    shutdown_ms: int
    fence_ms: int
    work_s: float | None
    """How long workers work once all of their round run; None: until faults stop."""
    nodes: tuple[NodePlan, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """The faults of a seed and how often they happen."""

    kinds: tuple[Fault, ...]
    pause_s: float
    """Average time between two faults."""
    until_s: float
    """When faults stop."""
    is_lonely: bool
    """One kind of fault strikes now and then, and no work ends before faults stop."""
    delay_s: float
    """Longest time that a message takes."""
    window: int
    """Messages that a direction of a stream holds."""
    step_ms: int
    """How long a step of the coordinator's core computes, at most."""
    journal_s: float
    """How long the journal takes to append, at most."""
    files_s: float
    """How long a file operation takes, at most."""
    cannot_start: float
    """Probability that a worker cannot be started."""
    ignores_term: float
    survives_kill: float
    returns: float
    """Probability that another agent starts on a node whose agent is gone."""
    collateral: float
    """Probability that a worker fails because another one did."""
    no_port: float
    """Probability that no port can be reserved."""

    @property
    def is_patient(self) -> bool:
        """True when no fault may cost a node its place."""
        return not set(self.kinds) - {Fault.FAIL_WORKER, Fault.STALL, Fault.READ}

    @property
    def push_s(self) -> float:
        """Return how long news take at most in an undisturbed job."""
        return PUSH_S + 4 * self.journal_s + (SLOW_S if self.step_ms else 0)


def draw_rates(rng: Random) -> Rates:
    """Return the faults of one seed."""
    kinds = tuple(fault for fault in Fault if rng.random() < 0.45)
    if rng.random() < MILD_SHARE:
        kinds = (Fault.FAIL_WORKER, *rng.choice(((), (Fault.STALL,), (Fault.STALL, Fault.READ))))
    is_slow = rng.random() < 0.25
    pause_s, until_s = rng.uniform(0.4, 3.0), rng.uniform(3.0, 10.0)
    is_lonely = rng.random() < LONELY_SHARE
    if is_lonely:
        kinds = (rng.choice((rng.choice(tuple(Fault)), Fault.KILL_AGENT)),)
        pause_s, until_s = 5.0, rng.uniform(9.0, 15.0)
    return Rates(
        kinds=kinds,
        pause_s=pause_s,
        until_s=until_s,
        is_lonely=is_lonely,
        delay_s=rng.choice((0.001, 0.02, 0.05)),
        window=rng.choice((1, 2, 4)),
        step_ms=rng.choice((5, 15)) if is_slow else 0,
        journal_s=rng.choice((0.0, 0.0, 0.02, 0.4)),
        files_s=rng.choice((0.0, 0.0, 0.3, 1.5)),
        cannot_start=rng.choice((0, 0, 0, 0.05)),
        ignores_term=rng.choice((0, 0, 0.2)),
        survives_kill=rng.choice((0, 0, 0, 0.1)),
        returns=rng.choice((0.3, 0.9, 1.0)),
        collateral=rng.choice((0.0, 0.7)),
        no_port=rng.choice((0, 0, 0, 0.2)),
    )


def draw_jobs(rng: Random, rates: Rates) -> tuple[JobPlan, ...]:
    """Return the jobs of one seed."""
    return tuple(_draw_job(rng, rates, number) for number in range(rng.choice((1, 1, 2))))


def _draw_job(rng: Random, rates: Rates, number: int) -> JobPlan:
    job_id = f"job{number}"
    most = rng.randint(1, 4)
    least = rng.randint(1, most)
    shutdown_ms = rng.choice((200, 1_000))
    fence_ms = 0
    if rng.random() < 0.3:
        fence_ms = shutdown_ms + FENCE_BEYOND_SHUTDOWN_MS + rng.choice((0, 2_000))
    spec = job_pb2.JobSpec(
        min_nodes=least,
        max_nodes=most,
        max_restarts=rng.choice((0, 1, 3, 20)),
        join_timeout=to_duration(8_000),
        last_call=to_duration(rng.choice((0, 300))),
        settle_time=to_duration(rng.choice((0, 300))),
        grow_after=to_duration(rng.choice((200, 1_500))),
        grow=rng.random() < 0.8,
        shutdown_timeout=to_duration(shutdown_ms),
        restart_backoff=to_duration(rng.choice((0, 100))),
        fence_after=to_duration(fence_ms) if fence_ms else None,
        quarantine_after=0,
        max_reformations=20,
        crash_loop=0,
        lease=to_duration(rng.choice((1_500, 3_000))) if rng.random() < 0.3 else None,
    )
    nodes = tuple(
        NodePlan(
            job_id=job_id,
            name=f"n{node}",
            workers=rng.randint(1, 2),
            starts_s=rng.uniform(0, 2.0),
            drain_ms=rng.choice((0, 0, rng.randint(100, 3_000))),
        )
        for node in range(rng.randint(least, most + 1))
    )
    work_s = rng.uniform(0.5, 6.0) if rng.random() < 0.5 and not rates.is_lonely else None
    return JobPlan(job_id, spec, shutdown_ms, fence_ms, work_s, nodes)
