"""Jobs, for readers."""

from __future__ import annotations

from rallypoint.server.contract.mappers import DEPARTURES, OUTCOMES, PHASES, REASONS, SPEC, WAITING
from rallypoint.server.contract.round import notice_message, round_message, timeline_message
from rallypoint.server.contract.times import to_timestamp
from rallypoint.server.contract.verdict import describe_verdict, verdict_message
from rallypoint.server.contract.waiting import Explain
from rallypoint.server.core.model.job import Job, RunSummary
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import Departure, Hang, RoundSummary
from rallypoint.server.core.reads.explain import Waiting, count_gone, explain
from rallypoint.server.core.state.clocks import Clocks
from rallypoint.server.core.state.state import State
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration, to_optional_duration

LINE_CHARS_MAX = 256
"""Longest text of a summary."""


def summary_message(
    state: State, job: Job, now_ms: int, explain: Explain = explain
) -> job_pb2.JobSummary:
    """Return the main facts of a job."""
    clocks, waiting = state.clocks, explain(state, job, now_ms)
    return job_pb2.JobSummary(
        job_id=job.job_id,
        run=job.run,
        phase=PHASES[job.phase],
        outcome=outcome_of(job.outcome),
        node_count=state.tally(job.job_id).nodes,
        silent_count=_count_silent(state, job, waiting),
        world_size=0 if job.round is None else job.round.header.world_size,
        round=job.round_number,
        restart_count=job.counts.restart_count,
        max_restarts=job.spec.max_restarts,
        age=to_duration(now_ms - job.opened_ms),
        revision=state.revision_of(job.job_id),
        opened_at=to_timestamp(job.opened_ms, clocks, now_ms),
        closed_at=to_timestamp(job.closed_ms, clocks, now_ms),
        min_nodes=job.spec.min_nodes,
        max_nodes=job.spec.max_nodes,
        waiting="" if waiting is None else _to_line(waiting.text),
        verdict="" if job.verdict is None else _to_line(describe_verdict(job.verdict)),
    )


def basic_message(state: State, job: Job, now_ms: int, explain: Explain = explain) -> job_pb2.Job:
    """Return a job without the parts that grow with its nodes and rounds."""
    clocks, waiting = state.clocks, explain(state, job, now_ms)
    return job_pb2.Job(
        job_id=job.job_id,
        run=job.run,
        spec=SPEC.encode(job.spec),
        phase=PHASES[job.phase],
        waiting=None if waiting is None else WAITING.encode(waiting),
        round=None if job.round is None else round_message(job.round, clocks, now_ms),
        restart_count=job.counts.restart_count,
        outcome=outcome_of(job.outcome),
        verdict=None if job.verdict is None else verdict_message(job.verdict, now_ms),
        age=to_duration(now_ms - job.opened_ms),
        revision=state.revision_of(job.job_id),
        opened_at=to_timestamp(job.opened_ms, clocks, now_ms),
        closed_at=to_timestamp(job.closed_ms, clocks, now_ms),
        heartbeat_interval=to_duration(state.heartbeat_ms(job.spec)),
        lease=to_duration(state.lease_ms(job.spec)),
        departures=[_departure_message(departure, clocks, now_ms) for departure in job.lost],
        notices=[
            notice_message(notice, max(0, notice.until_ms - now_ms))
            for notice in (job.round.notices if job.phase is Phase.RUNNING and job.round else ())
        ],
        node_count=state.tally(job.job_id).nodes,
        silent_count=_count_silent(state, job, waiting),
        gone_count=count_gone(state, job),
        hang=None if job.round is None else _hang_message(job.round.hang, now_ms),
    )


def _hang_message(hang: Hang | None, now_ms: int) -> job_pb2.Hang | None:
    if hang is None:
        return None
    return job_pb2.Hang(
        still_for=to_duration(max(0, now_ms - hang.since_ms)),
        suspected_for=to_duration(max(0, now_ms - hang.suspected_ms)),
        rank=hang.rank,
        node_name=hang.name,
        text=hang.text,
    )


def _count_silent(state: State, job: Job, waiting: Waiting | None) -> int:
    away = state.tally(job.job_id).away
    return away if waiting is None else max(away, waiting.silent)


def outcome_of(outcome: Outcome | None) -> job_pb2.Outcome.ValueType:
    """Return how a run ended."""
    return job_pb2.OUTCOME_OPEN if outcome is None else OUTCOMES[outcome]


def _to_line(text: str) -> str:
    line = " ".join(text.split())
    return (
        line
        if len(line) <= LINE_CHARS_MAX
        else f"{line[: LINE_CHARS_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


def _departure_message(departure: Departure, clocks: Clocks, now_ms: int) -> job_pb2.Departure:
    finished, kind = job_pb2.DEPARTURE_KIND_FINISHED, DEPARTURES[departure.reason]
    return job_pb2.Departure(
        node_name=departure.name,
        kind=finished if departure.has_finished else kind,
        text=departure.text,
        age=to_duration(now_ms - departure.at_ms),
        departed_at=to_timestamp(departure.at_ms, clocks, now_ms),
    )


def past_round_message(summary: RoundSummary, clocks: Clocks, now_ms: int) -> job_pb2.RoundSummary:
    """Return a round that has ended."""
    return job_pb2.RoundSummary(
        run=summary.run,
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
        began_at=to_timestamp(summary.began_ms, clocks, now_ms),
        ended_at=to_timestamp(summary.ended_ms, clocks, now_ms),
        verdict=None if summary.verdict is None else verdict_message(summary.verdict, now_ms),
        timeline=timeline_message(summary.timeline),
        end_note=summary.stop_note,
    )


def past_run_message(run: RunSummary, clocks: Clocks, now_ms: int) -> job_pb2.RunSummary:
    """Return a run that has ended."""
    return job_pb2.RunSummary(
        run=run.run,
        outcome=outcome_of(run.outcome),
        verdict=None if run.verdict is None else verdict_message(run.verdict, now_ms),
        restart_count=run.restart_count,
        max_restarts=run.max_restarts,
        round=run.round,
        opened_at=to_timestamp(run.opened_ms, clocks, now_ms),
        closed_at=to_timestamp(run.closed_ms, clocks, now_ms),
        lasted_for=to_duration(run.closed_ms - run.opened_ms),
    )


def latest_run_message(job: Job, clocks: Clocks, now_ms: int) -> job_pb2.RunSummary:
    """Return the latest run of a job."""
    verdict = None if job.verdict is None else job.verdict.without_output()
    ended_ms = now_ms if job.closed_ms is None else job.closed_ms
    return job_pb2.RunSummary(
        run=job.run,
        outcome=outcome_of(job.outcome),
        verdict=None if verdict is None else verdict_message(verdict, now_ms),
        restart_count=job.counts.restart_count,
        max_restarts=job.spec.max_restarts,
        round=job.latest_round,
        opened_at=to_timestamp(job.opened_ms, clocks, now_ms),
        closed_at=to_timestamp(job.closed_ms, clocks, now_ms),
        lasted_for=to_duration(ended_ms - job.opened_ms),
    )
