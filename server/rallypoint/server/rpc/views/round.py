"""Rounds: headers, assignments, the current round and earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rallypoint.server.core.model.round import Assignment, Member, Round, RoundHeader, Timeline
from rallypoint.server.core.rounds.timelines import MARKS, find_marks
from rallypoint.server.rpc.views.enums import REASONS
from rallypoint.server.rpc.views.times import to_timestamp
from rallypoint.v1 import round_pb2
from rallypoint.wire.durations import to_duration, to_optional_duration

SHARED_MAX = 64
"""Rounds whose messages are kept: one message goes to every member."""


@lru_cache(maxsize=SHARED_MAX)
def header_message(header: RoundHeader) -> round_pb2.RoundHeader:
    """Return what all members of a round share. Copy the message; it is shared."""
    return round_pb2.RoundHeader(
        number=header.number,
        run=header.run,
        world_size=header.world_size,
        group_world_size=header.group_world_size,
        master_addr=header.master_addr,
        master_port=header.master_port,
        restart_count=header.restart_count,
        reason=REASONS[header.reason],
        epoch=header.epoch,
    )


def assignment_message(assignment: Assignment) -> round_pb2.Assignment:
    """Return the ranks of a node's workers."""
    return round_pb2.Assignment(
        group_rank=assignment.group_rank,
        first_rank=assignment.first_rank,
        local_world_size=assignment.local_world_size,
        role=assignment.role,
        first_role_rank=assignment.first_role_rank,
        role_world_size=assignment.role_world_size,
    )


def round_message(round: Round, now_ms: int) -> round_pb2.Round:
    """Return the current round without its members."""
    started_ms = round.started_ms
    return round_pb2.Round(
        header=header_message(round.header),
        age=to_duration(now_ms - round.sealed_ms),
        started_after=to_optional_duration(
            None if started_ms is None else started_ms - round.sealed_ms
        ),
        step=round.step,
        since_step=to_optional_duration(
            None if round.step_ms is None else max(0, now_ms - round.step_ms)
        ),
        step_interval=to_optional_duration(round.step_gap_ms),
        sealed_at=to_timestamp(round.sealed_ms, now_ms),
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
    return round_pb2.RoundMember(
        node_name=member.name, assignment=assignment_message(member.assignment)
    )
