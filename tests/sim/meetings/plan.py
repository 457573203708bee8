"""What the workers of a round do at barriers: who meets, and what each of them sends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from rallypoint.agent.core.desired import RoundHeader
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import scope_pb2

MEETINGS_MAX = 4
"""Meetings of one round."""
RUN_SHARE = 0.4
"""Of the meetings: those at a barrier of the run."""


class Who(Enum):
    """Who takes part in a meeting."""

    RANK = "rank"  # all ranks
    COUNT = "count"  # so many ranks, no matter which
    NAME = "name"  # free names, listed by everyone
    NODE = "node"  # all nodes; the first worker of each speaks for it


@dataclass(frozen=True, slots=True)
class Meeting:
    """What all workers of a round do at one point of their script."""

    name: str
    of_run: bool
    who: Who
    count: int = 0
    """For COUNT: how many; fewer than all ranks release it without the others."""
    is_numbered: bool = False
    """Each says at which generation it may count, if it knows the one before."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who calls."""

    job_id: str
    rank: int
    is_first: bool
    """Of the workers of its node."""
    node: str
    header: RoundHeader
    """Of its round."""


def draw_plan(rng: Random, more: Random, world_size: int) -> tuple[Meeting, ...]:
    """Return the meetings of a round.

    Args:
        rng: draws the meetings.
        more: draws what was added later, so that the meetings of a seed stay as they are.
        world_size: workers of the round.
    """
    return tuple(_draw(rng, more, world_size) for _ in range(rng.randint(0, MEETINGS_MAX)))


def _draw(rng: Random, more: Random, world_size: int) -> Meeting:
    meeting = Meeting(
        name=rng.choice(("a", "b")),
        of_run=rng.random() < RUN_SHARE,
        who=rng.choice((Who.RANK, Who.RANK, Who.COUNT, Who.NAME)),
        count=world_size,
    )
    who = more.choice((meeting.who, meeting.who, Who.NODE))
    count = more.choice((world_size, more.randint(1, world_size)))
    return Meeting(meeting.name, meeting.of_run, who, count, is_numbered=more.random() < 0.5)


def takes_part(meeting: Meeting, speaker: Speaker) -> bool:
    """Return whether a worker goes to a meeting."""
    return meeting.who is not Who.NODE or speaker.is_first


def size_of(meeting: Meeting, header: RoundHeader) -> int:
    """Return how many arrivals release a meeting."""
    match meeting.who:
        case Who.COUNT:
            return meeting.count
        case Who.NODE:
            return header.group_world_size
        case _:
            return header.world_size


def label_of(meeting: Meeting, speaker: Speaker) -> str:
    """Return the name of a participant, as text."""
    match meeting.who:
        case Who.NODE:
            return speaker.node
        case Who.NAME:
            return f"w{speaker.rank}"
        case _:
            return str(speaker.rank)


def request_of(meeting: Meeting, speaker: Speaker, request_id: str) -> barrier_pb2.ArriveRequest:
    """Return an arrival. Its payload says who sent it, and for which arrival."""
    label, expected = label_of(meeting, speaker), barrier_pb2.Expected()
    who = barrier_pb2.Participant(rank=speaker.rank)
    match meeting.who:
        case Who.COUNT:
            expected.count = meeting.count
        case Who.NAME:
            who = barrier_pb2.Participant(name=label)
            names = (f"w{number}" for number in range(speaker.header.world_size))
            expected.participants.names.extend(names)
        case Who.NODE:
            who = barrier_pb2.Participant(node=label)
    return barrier_pb2.ArriveRequest(
        job_id=speaker.job_id,
        scope=scope_pb2.SCOPE_RUN if meeting.of_run else scope_pb2.SCOPE_ROUND,
        name=meeting.name,
        participant=who,
        expected=expected,
        payload=f"{label} {request_id}".encode(),
        request_id=request_id,
    )
