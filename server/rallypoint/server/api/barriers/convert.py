"""Requests to BarrierService."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import limit_wait_ms, require
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.barrier import (
    PARTICIPANTS_MAX,
    BarrierKey,
    Expected,
    Participant,
    ParticipantKind,
)
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import scope_pb2
from rallypoint.wire.durations import to_ms

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
