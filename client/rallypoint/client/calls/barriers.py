"""BarrierService."""

from __future__ import annotations

import itertools
import os
import secrets

from rallypoint.client.attempts import Call, Method
from rallypoint.client.calls.lists import Listing
from rallypoint.client.known import Known
from rallypoint.client.values import Scope
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2

_SERVICE = "/rallypoint.v1.BarrierService/"
ARRIVE = Method(f"{_SERVICE}Arrive", barrier_pb2.ArriveRequest, barrier_pb2.ArriveResponse)
LIST_BARRIERS = Method(
    f"{_SERVICE}ListBarriers", barrier_pb2.ListBarriersRequest, barrier_pb2.ListBarriersResponse
)


_CALLER = secrets.token_hex(8)
_NUMBERS = itertools.count(1)


def _make_request_id() -> str:
    """Return the next id of an arrival: CALLER#NUMBER, which tells a late attempt from a new one.

    The process id is a part of it, because a child that was forked has the same counter.
    """
    return f"{_CALLER}.{os.getpid()}#{next(_NUMBERS)}"


def arrive(
    known: Known,
    job_id: str,
    name: str,
    participant: barrier_pb2.Participant,
    *,
    expected: barrier_pb2.Expected | None,
    payload: bytes,
    scope: Scope,
    generation: int,
) -> Call[barrier_pb2.ArriveRequest, barrier_pb2.ArriveResponse]:
    """Arrive at a barrier."""
    request = barrier_pb2.ArriveRequest(
        job_id=job_id,
        scope=scope.value,  # type: ignore[arg-type]  # the numbers are those of the contract
        name=name,
        participant=participant,
        expected=expected,
        generation=generation,
        payload=payload,
        request_id=_make_request_id(),
    )
    first_epoch = known.epoch

    def mark() -> None:
        request.first_epoch = first_epoch

    def learn(answer: barrier_pb2.ArriveResponse) -> None:
        known.learn_epoch(answer.epoch, durable=answer.durable)

    is_exact = known.is_durable
    return Call(ARRIVE, request, waits=True, mark=mark, is_exact=is_exact, learn=learn)


def list_barriers(
    job_id: str, page_size: int
) -> Listing[
    barrier_pb2.ListBarriersRequest, barrier_pb2.ListBarriersResponse, barrier_pb2.Barrier
]:
    """List the open barriers of a job."""
    request = barrier_pb2.ListBarriersRequest(job_id=job_id, page_size=page_size)
    return Listing(LIST_BARRIERS, request, lambda page: page.barriers)
