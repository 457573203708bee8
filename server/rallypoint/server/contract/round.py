"""Rounds: headers, assignments, members, timelines, and notices of what will end one."""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.server.contract.mappers import ASSIGNMENT, HEADER
from rallypoint.server.contract.times import to_timestamp
from rallypoint.server.core.model.round import Member, Notice, Round, Timeline
from rallypoint.server.core.rounds.timelines import MARKS, find_marks
from rallypoint.server.core.state.clocks import Clocks
from rallypoint.v1 import job_pb2, round_pb2
from rallypoint.wire.durations import to_duration, to_optional_duration


def round_message(round: Round, clocks: Clocks, now_ms: int) -> round_pb2.Round:
    """Return the current round without its members."""
    started_ms = round.started_ms
    return round_pb2.Round(
        header=HEADER.encode(round.header),
        age=to_duration(now_ms - round.sealed_ms),
        started_after=to_optional_duration(
            None if started_ms is None else started_ms - round.sealed_ms
        ),
        step=round.step,
        since_step=to_optional_duration(
            None if round.step_ms is None else max(0, now_ms - round.step_ms)
        ),
        step_interval=to_optional_duration(round.step_gap_ms),
        sealed_at=to_timestamp(round.sealed_ms, clocks, now_ms),
        timeline=timeline_message(round.timeline),
    )


def timeline_message(timeline: Timeline | None) -> round_pb2.RoundTimeline | None:
    """Return how a round came into being."""
    return None if timeline is None else marks_message(dict(find_marks(timeline)))


def marks_message(marks: Mapping[str, int]) -> round_pb2.RoundTimeline:
    """Return marks, each in ms since their origin; what is not among `MARKS` does not count."""
    known = {name.removesuffix("_ms"): to_duration(marks[name]) for name in MARKS if name in marks}
    return round_pb2.RoundTimeline(**known)


def member_message(member: Member) -> round_pb2.RoundMember:
    """Return a member of a round."""
    assignment = ASSIGNMENT.encode(member.assignment)
    return round_pb2.RoundMember(node_name=member.name, assignment=assignment)


def notice_message(notice: Notice, left_ms: int) -> job_pb2.Notice:
    """Return a notice; `left_ms` is the time until the event happens at the latest."""
    drains = notice.name is not None
    return job_pb2.Notice(
        kind=job_pb2.NOTICE_KIND_DRAIN if drains else job_pb2.NOTICE_KIND_GROWTH,
        time_left=to_duration(left_ms),
        node_name=notice.name or "",
        reason=notice.reason,
    )
