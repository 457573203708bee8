"""What callers of BarrierService see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from itertools import islice, takewhile

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.server.contract.pages import Room
from rallypoint.server.contract.refusals import NAMES_BYTES_MAX
from rallypoint.server.contract.source import Source
from rallypoint.server.core.barriers.ends import expected_participants
from rallypoint.server.core.barriers.words import describe_participants
from rallypoint.server.core.model.barrier import (
    Arrival,
    Barrier,
    BarrierKey,
    BreakReason,
    Ended,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.job import Job
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import scope_pb2
from rallypoint.wire.durations import to_duration
from rallypoint.wire.errors import pack_status
from rallypoint.wire.mapping import numbers_of

LISTED_MAX = 1_024
"""Participants that a list of barriers names of each side."""
TEXT_CHARS_MAX = 300
"""Characters of the reason, which may be a worker's own words; the status has them three times."""

_REASONS = numbers_of(BreakReason, details_pb2.BarrierBreakReason.DESCRIPTOR)


def participants_message(participants: Iterable[Participant]) -> barrier_pb2.Participants:
    """Return participants, which are in order."""
    message = barrier_pb2.Participants()
    for participant in participants:
        match participant.kind:
            case ParticipantKind.RANK:
                message.ranks.append(participant.rank)
            case ParticipantKind.NODE:
                message.nodes.append(participant.name)
            case ParticipantKind.NAME:
                message.names.append(participant.name)
    return message


def released_message(ended: Ended, source: Source) -> barrier_pb2.ArriveResponse:
    """Return the answer to everyone at a barrier that was released."""
    has_payloads = any(arrival.payload for _, arrival in ended.arrivals)
    return barrier_pb2.ArriveResponse(
        epoch=source.epoch,
        durable=source.durable,
        generation=ended.generation,
        participant_count=len(ended.arrivals),
        participants=participants_message(who for who, _ in ended.arrivals if has_payloads),
        payloads=[arrival.payload for _, arrival in ended.arrivals if has_payloads],
    )


def broken_status(key: BarrierKey, ended: Ended) -> Status:
    """Return the status for everyone at a barrier that has failed."""
    broken = ended.broken
    assert broken is not None
    why = broken.text[:TEXT_CHARS_MAX]
    missing = tuple(_within(broken.missing))
    detail = details_pb2.BarrierBroken(
        name=key.name,
        generation=ended.generation,
        reason=_REASONS[broken.reason],
        text=why,
        missing_count=broken.missing_count,
        missing=participants_message(missing),
        lost=participants_message(_within(broken.lost)),
    )
    text = f"barrier {key.name} failed: {why}"
    if missing:
        text += f"; missing: {describe_participants(missing, broken.missing_count)}"
    elif broken.missing_count:
        text += f"; {broken.missing_count} missing"
    is_overdue = broken.reason is BreakReason.OVERDUE
    code = grpc.StatusCode.DEADLINE_EXCEEDED if is_overdue else grpc.StatusCode.ABORTED
    return pack_status(code, text, detail, reason=details_pb2.REFUSAL_REASON_BARRIER_BROKEN)


def barrier_message(
    barrier: Barrier, arrivals: Mapping[Participant, Arrival], job: Job, now_ms: int
) -> barrier_pb2.Barrier:
    """Return an open barrier."""
    arrived = nsmallest(LISTED_MAX, arrivals)
    absent = (one for one in expected_participants(barrier, job) if one not in arrivals)
    latest_ms = max(arrival.at_ms for arrival in arrivals.values())
    return barrier_pb2.Barrier(
        scope=scope_pb2.SCOPE_ROUND if barrier.key.round else scope_pb2.SCOPE_RUN,
        round=barrier.key.round,
        name=barrier.key.name,
        generation=barrier.generation,
        expected_count=barrier.expected.count,
        arrived_count=len(arrivals),
        arrived=participants_message(arrived),
        missing=participants_message(islice(absent, LISTED_MAX)),
        age=to_duration(now_ms - (barrier.opened_ms or 0)),
        since_last_arrival=to_duration(now_ms - latest_ms),
        time_left=to_duration(max(0, barrier.deadline_ms - now_ms)),
    )


def _within(participants: Iterable[Participant]) -> Iterable[Participant]:
    room = Room(bytes_max=NAMES_BYTES_MAX)
    return takewhile(lambda one: room.take(len(one.name.encode())), participants)
