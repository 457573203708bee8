"""A coordinator's memory: what the journal's records, in order, amount to.

Nodes are not part of it: they say Hello again. What a record does not hold, no coordinator needs
to remember.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rallypoint.server.core.drains import with_asked, without_asked
from rallypoint.server.core.effects import (
    DrainAsked,
    DrainOver,
    EpochRaised,
    JobForgotten,
    NodeHealthChanged,
    NodeSucceeded,
    Record,
    RoundSealed,
    RoundSettled,
    RoundStopped,
    RunClosed,
    RunOpened,
)
from rallypoint.server.core.health import with_health
from rallypoint.server.core.model import (
    Activity,
    Asked,
    Job,
    JobId,
    JobSpec,
    Member,
    NodeHealth,
    NodeName,
    Outcome,
    Phase,
    RoundHeader,
    RoundReason,
    Verdict,
)
from rallypoint.server.core.ranks import slots_of
from rallypoint.server.core.state import State


@dataclass(frozen=True, slots=True)
class JobMemory:
    """What is durable about one job's latest run."""

    run: int
    spec: JobSpec
    launch_id: str
    phase: Phase = Phase.FORMING
    round_number: int = 0
    header: RoundHeader | None = None
    """Of the round that runs or is being stopped."""
    members: tuple[Member, ...] = ()
    slots: tuple[NodeName, ...] = ()
    stop_reason: RoundReason | None = None
    succeeded: frozenset[NodeName] = frozenset()
    next_reason: RoundReason = RoundReason.FIRST
    restart_count: int = 0
    streak: int = 0
    crash_signature: str = ""
    crash_repeats: int = 0
    reformations: int = 0
    growths: int = 0
    drains: int = 0
    asked: tuple[Asked, ...] = ()
    backoff_until_ms: int = 0
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    health: tuple[NodeHealth, ...] = ()


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A record that stands for all earlier ones of its job."""

    job_id: JobId
    memory: JobMemory


JournalRecord = Record | JobSnapshot


@dataclass(slots=True)
class Memory:
    """What is durable about a coordinator."""

    epoch: int = 0
    jobs: dict[JobId, JobMemory] = field(default_factory=dict)


def replay(records: Iterable[JournalRecord]) -> Memory:
    """Return what `records`, oldest first, amount to."""
    memory = Memory()
    for record in records:
        _take(memory, record)
    return memory


def snapshot(memory: Memory) -> tuple[JournalRecord, ...]:
    """Return the fewest records whose replay is `memory`."""
    jobs = (JobSnapshot(job_id, job) for job_id, job in memory.jobs.items())
    return (EpochRaised(memory.epoch), *jobs)


def _take(memory: Memory, record: JournalRecord) -> None:
    if isinstance(record, EpochRaised):
        memory.epoch = max(memory.epoch, record.epoch)
    elif isinstance(record, JobForgotten):
        memory.jobs.pop(record.job_id, None)
    elif isinstance(record, JobSnapshot):
        memory.jobs[record.job_id] = record.memory
    elif isinstance(record, RunOpened):
        known = memory.jobs.get(record.job_id)
        memory.jobs[record.job_id] = JobMemory(
            run=record.run,
            spec=record.spec,
            launch_id=record.launch_id,
            round_number=record.round_number,
            restart_count=record.restart_count,
            asked=record.asked,
            health=() if known is None else known.health,
        )
    else:
        memory.jobs[record.job_id] = _take_of_job(memory.jobs[record.job_id], record)


def _take_of_job(
    job: JobMemory,
    record: RoundSealed
    | RoundStopped
    | NodeSucceeded
    | DrainAsked
    | DrainOver
    | RoundSettled
    | NodeHealthChanged
    | RunClosed,
) -> JobMemory:
    match record:
        case RoundSealed(header=header, members=members):
            return replace(
                job,
                phase=Phase.RUNNING,
                round_number=header.number,
                header=header,
                members=members,
                slots=slots_of(members, header.group_world_size),
                stop_reason=None,
                succeeded=frozenset(),
            )
        case RoundStopped(reason=reason):
            return replace(job, phase=Phase.STOPPING, stop_reason=reason)
        case NodeSucceeded(name=name):
            return replace(job, succeeded=job.succeeded | {name})
        case DrainAsked(asked=asked):
            return replace(job, asked=with_asked(job.asked, asked))
        case DrainOver(name=name):
            return replace(job, asked=without_asked(job.asked, name))
        case RoundSettled():
            return replace(
                job,
                phase=Phase.FORMING,
                header=None,
                members=(),
                stop_reason=None,
                succeeded=frozenset(),
                next_reason=record.reason,
                restart_count=record.restart_count,
                streak=record.streak,
                crash_signature=record.crash_signature,
                crash_repeats=record.crash_repeats,
                reformations=record.reformations,
                growths=record.growths,
                drains=record.drains,
                backoff_until_ms=record.backoff_until_ms,
            )
        case NodeHealthChanged(health=health):
            return replace(job, health=with_health(job.health, health))
        case RunClosed(outcome=outcome, verdict=verdict):
            return replace(
                job,
                phase=Phase.CLOSED,
                header=None,
                members=(),
                stop_reason=None,
                succeeded=frozenset(),
                outcome=outcome,
                verdict=verdict,
            )


def memory_of(state: State) -> Memory:
    """Return what is durable about `state`: what a replay of its journal must give."""
    return Memory(
        state.epoch, {job_id: _memory_of_job(state, job) for job_id, job in state.jobs.items()}
    )


def _memory_of_job(state: State, job: Job) -> JobMemory:
    round = job.round
    alive = frozenset(
        node.name
        for node in (state.nodes[session] for session in state.sessions.get(job.job_id, ()))
        if node.member and node.activity is Activity.SUCCEEDED
    )
    return JobMemory(
        run=job.run,
        spec=job.spec,
        launch_id=job.launch_id,
        phase=job.phase,
        round_number=job.round_number,
        header=round.header if round else None,
        members=round.members if round else (),
        slots=job.slots,
        stop_reason=round.stop_reason if round else None,
        succeeded=alive | frozenset(round.succeeded_gone if round else ()),
        next_reason=job.next_reason,
        restart_count=job.restart_count,
        streak=job.streak,
        crash_signature=job.crash_signature,
        crash_repeats=job.crash_repeats,
        reformations=job.reformations,
        growths=job.growths,
        drains=job.drains,
        asked=job.asked,
        backoff_until_ms=job.backoff_until_ms,
        outcome=job.outcome,
        verdict=job.verdict if job.outcome is not None else None,
        health=job.health,
    )
