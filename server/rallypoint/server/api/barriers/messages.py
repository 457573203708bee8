"""The messages of BarrierService: requests as inputs, and what callers see."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from itertools import islice, takewhile

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import Source, limit_wait_ms, require
from rallypoint.server.contract.pages import Room
from rallypoint.server.contract.refusals import NAMES_BYTES_MAX
from rallypoint.server.core.barriers.ends import expected_participants
from rallypoint.server.core.barriers.words import describe_participants
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.barrier import (
    PARTICIPANTS_MAX,
    Arrival,
    Barrier,
    BarrierKey,
    BreakReason,
    Ended,
    Expected,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.job import Job
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import scope_pb2
from rallypoint.wire.durations import to_duration, to_ms
from rallypoint.wire.errors import pack_status
from rallypoint.wire.mapping import numbers_of

WHOLE_CALL_MS = 2**53
"""As long as the call lasts."""
TIMEOUT_MS = 600_000
"""How long an arrival waits if neither its request nor its call says."""


def to_arrive(
    request: barrier_pb2.ArriveRequest,
    claim: inputs.Claim,
    left_s: float | None,
    clock_ms: int,
    known: Expected | None = None,
) -> inputs.Arrive:
    """Return an arrival.

    Args:
        request: from a worker.
        claim: what its token says.
        left_s: seconds until the deadline of the call; None without one.
        clock_ms: the coordinator's clock, as Unix time.
        known: who is expected, if the request says the same as an earlier one.
    """
    if known is not None:
        request.ClearField("expected")  # the earlier one was checked
    check(request, clock_ms)
    participant = to_participant(request.participant)
    return inputs.Arrive(
        claim=claim,
        key=to_key(request, claim),
        participant=participant,
        expected=_to_expected(request.expected, participant) if known is None else known,
        timeout_ms=_timeout_ms(request, left_s),
        request_id=request.request_id or secrets.token_hex(16),
        generation=request.generation,
        epoch=request.first_epoch,
        payload=request.payload,
    )


def _timeout_ms(request: barrier_pb2.ArriveRequest, left_s: float | None) -> int:
    if request.HasField("timeout"):
        return limit_wait_ms(to_ms(request.timeout), left_s)
    return limit_wait_ms(TIMEOUT_MS if left_s is None else WHOLE_CALL_MS, left_s)


def to_key(request: barrier_pb2.ArriveRequest, claim: inputs.Claim) -> BarrierKey:
    """Return the barrier of a request."""
    round = 0 if request.scope == scope_pb2.SCOPE_RUN else claim.round
    return BarrierKey(claim.job_id, claim.run, round, request.name)


def to_participant(message: barrier_pb2.Participant) -> Participant:
    """Return who arrives.

    Raises:
        InvalidMessage: when it is no one.
    """
    match message.WhichOneof("who"):
        case "rank":
            return Participant(ParticipantKind.RANK, message.rank, "")
        case "node":
            require(bool(message.node), "participant.node", "must not be empty")
            return Participant(ParticipantKind.NODE, 0, message.node)
        case "name":
            require(bool(message.name), "participant.name", "must not be empty")
            return Participant(ParticipantKind.NAME, 0, message.name)
        case _:
            require(False, "participant", "must name a rank, a node or a name")
            raise AssertionError


def _to_expected(message: barrier_pb2.Expected, participant: Participant) -> Expected:
    named = tuple(sorted(set(_to_participants(message.participants))))
    require(not (named and message.count), "expected", "must have a count or participants")
    problem = f"has too many entries: at most {PARTICIPANTS_MAX}"
    require(len(named) <= PARTICIPANTS_MAX, "expected.participants", problem)
    if named:
        return Expected(len(named), named)
    if message.count:
        return Expected(message.count)
    is_name = participant.kind is ParticipantKind.NAME
    require(not is_name, "expected", "must be set for a participant with a free name")
    return Expected(0, all_of=participant.kind)


def count_named(message: barrier_pb2.Expected) -> int:
    """Return how many participants a request names."""
    named = message.participants
    return len(named.ranks) + len(named.nodes) + len(named.names)


def is_same(message: barrier_pb2.Expected, expected: Expected) -> bool:
    """Return whether a request names exactly these participants. Quicker than to read them."""
    named = message.participants
    ranks = sorted(set(named.ranks))
    nodes, names = sorted(set(named.nodes)), sorted(set(named.names))
    kinds = (
        [ParticipantKind.RANK] * len(ranks)
        + [ParticipantKind.NODE] * len(nodes)
        + [ParticipantKind.NAME] * len(names)
    )
    return (
        not message.count
        and kinds == [one.kind for one in expected.participants]
        and [*ranks, *nodes, *names] == [one.name or one.rank for one in expected.participants]
    )


def _to_participants(message: barrier_pb2.Participants) -> Iterable[Participant]:
    yield from (Participant(ParticipantKind.RANK, rank, "") for rank in message.ranks)
    yield from (Participant(ParticipantKind.NODE, 0, name) for name in message.nodes)
    yield from (Participant(ParticipantKind.NAME, 0, name) for name in message.names)


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
