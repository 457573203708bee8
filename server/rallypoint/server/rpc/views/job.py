"""Jobs, for readers."""

from __future__ import annotations

from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Departure, RoundSummary
from rallypoint.server.core.reads.explain import explain
from rallypoint.server.core.state.state import State
from rallypoint.server.core.verdicts.health import is_notable
from rallypoint.server.rpc.views.commands import add_commands
from rallypoint.server.rpc.views.enums import OUTCOMES, PHASES, REASONS
from rallypoint.server.rpc.views.node import health_message, node_message
from rallypoint.server.rpc.views.notices import notice_message
from rallypoint.server.rpc.views.round import round_message
from rallypoint.server.rpc.views.spec import spec_message
from rallypoint.server.rpc.views.verdict import verdict_message
from rallypoint.server.rpc.views.waiting import waiting_message
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration, to_optional_duration


def job_message(state: State, job: Job, now_ms: int, *, whole: bool) -> job_pb2.Job:
    """Return a job; with `whole` also its nodes, health, history and its round's members."""
    waiting = explain(state, job, now_ms)
    message = job_pb2.Job(
        job_id=job.job_id,
        run=job.run,
        spec=spec_message(job.spec),
        phase=PHASES[job.phase],
        waiting=None if waiting is None else waiting_message(waiting),
        round=None if job.round is None else round_message(job.round, now_ms, whole=whole),
        restart_count=job.counts.restart_count,
        outcome=job_pb2.OUTCOME_UNSPECIFIED if job.outcome is None else OUTCOMES[job.outcome],
        verdict=None if job.verdict is None else verdict_message(job.verdict, now_ms),
        age=to_duration(now_ms - job.opened_ms),
        departures=[_departure_message(departure, now_ms) for departure in job.lost],
        notices=[
            notice_message(notice, max(0, notice.until_ms - now_ms))
            for notice in (job.round.notices if job.phase is Phase.RUNNING and job.round else ())
        ],
    )
    if whole:
        message.health.extend(
            health_message(health, job.spec, now_ms)
            for health in job.health
            if is_notable(health, job.spec, now_ms)
        )
        for session in state.sessions.get(job.job_id, ()):
            message.nodes.append(node_message(state, job, state.nodes[session], now_ms))
        add_commands(message, state, job.job_id)
        message.history.extend(_summary_message(summary, now_ms) for summary in job.history)
    return message


def _departure_message(departure: Departure, now_ms: int) -> job_pb2.Departure:
    return job_pb2.Departure(
        node_name=departure.name,
        reason=REASONS[departure.reason],
        text=departure.text,
        age=to_duration(now_ms - departure.at_ms),
    )


def _summary_message(summary: RoundSummary, now_ms: int) -> job_pb2.RoundSummary:
    return job_pb2.RoundSummary(
        number=summary.number,
        begin_reason=REASONS[summary.began],
        end_reason=REASONS[summary.ended],
        node_names=summary.names,
        group_world_size=summary.group_world_size,
        world_size=summary.world_size,
        restart_count=summary.restart_count,
        started_after=to_optional_duration(summary.started_after_ms),
        lasted_for=to_duration(summary.lasted_ms),
        recovered_after=to_optional_duration(summary.recovered_after_ms),
        verdict=None if summary.verdict is None else verdict_message(summary.verdict, now_ms),
    )
