"""Which error each status of the coordinator becomes."""

from __future__ import annotations

import pickle
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from rallypoint.client import errors
from rallypoint.client.failures import read_failure, to_error
from rallypoint.client.values import BreakReason, Participants
from rallypoint.server.contract.errors import refusal_status
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.errors import DETAILS_KEY, pack_status

CODES = {code.value[0]: code for code in grpc.StatusCode}


class Ended:
    """A call that has ended with a status, as gRPC shows it."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def code(self) -> grpc.StatusCode:
        return CODES[self._status.code]

    def details(self) -> str:
        text: str = self._status.message
        return text

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return (("other", "x"), (DETAILS_KEY, self._status.SerializeToString()))


def error_of(status: Status) -> Any:
    return to_error(read_failure(Ended(status)))


def status_of(code: grpc.StatusCode, detail: Message | None) -> Status:
    """Return a status with a detail; its reason does not matter."""
    return pack_status(code, "text", detail, reason=details_pb2.REFUSAL_REASON_BARRIER_BROKEN)


def test_broken_barrier_names_who_is_missing() -> None:
    """All that the coordinator says is in the error, and its text is the message."""
    detail = details_pb2.BarrierBroken(
        name="b",
        generation=3,
        reason=details_pb2.BARRIER_BREAK_REASON_LOST,
        missing_count=3,
        missing=barrier_pb2.Participants(ranks=[1, 2], nodes=["n"]),
        lost=barrier_pb2.Participants(names=["loader"]),
    )
    error = error_of(status_of(grpc.StatusCode.ABORTED, detail))
    assert isinstance(error, errors.BarrierBroken)

    assert ("text", "ABORTED", "b", 3) == (str(error), error.status, error.name, error.generation)
    assert (BreakReason.LOST, 3) == (error.reason, error.missing_count)
    assert Participants(ranks=(1, 2), nodes=("n",)) == error.missing
    assert Participants(names=("loader",)) == error.lost


def test_every_reason_of_the_contract_is_known() -> None:
    """And one of a newer coordinator is no failure."""
    for name, number in details_pb2.BarrierBreakReason.items():
        detail = details_pb2.BarrierBroken(reason=number)
        error = error_of(status_of(grpc.StatusCode.DEADLINE_EXCEEDED, detail))
        wanted = name.removeprefix("BARRIER_BREAK_REASON_").replace("UNSPECIFIED", "UNKNOWN")
        assert (wanted, "DEADLINE_EXCEEDED") == (error.reason.name, error.status)
    newer = details_pb2.BarrierBroken.FromString(b"\x18\x63")

    assert BreakReason.UNKNOWN is error_of(status_of(grpc.StatusCode.ABORTED, newer)).reason


@pytest.mark.parametrize(
    ("kind", "facts", "wanted"),
    [
        (RefusalKind.RUN_OVER, {"expected": 2, "actual": 1}, errors.StaleRun),
        (RefusalKind.OLD_ROUND, {"expected": 2, "actual": 1}, errors.StaleRound),
        (RefusalKind.STALE_EPOCH, {"expected": 2, "actual": 1}, errors.Stale),
        (
            RefusalKind.BARRIER_MISMATCH,
            {"name": "b", "expected": "all 4 ranks", "actual": "2 participants"},
            errors.BarrierMismatch,
        ),
        (RefusalKind.BARRIER_FORGOTTEN, {"name": "b"}, errors.Forgotten),
        (
            RefusalKind.PARTICIPANT_ARRIVED,
            {"name": "b", "participant": "rank 1"},
            errors.AlreadyArrived,
        ),
        (RefusalKind.NOT_EXPECTED, {"name": "b", "participant": "rank 1"}, errors.Refused),
        (RefusalKind.LIMIT_REACHED, {"limit": "nodes per job", "value": 3}, errors.LimitReached),
        (RefusalKind.UNKNOWN_JOB, {"job_id": "j"}, errors.UnknownJob),
        (RefusalKind.UNKNOWN_NODE, {"job_id": "j", "node_name": "n"}, errors.UnknownNode),
        (RefusalKind.TOKEN_MISSING, {}, errors.NotAllowed),
        (RefusalKind.TOKEN_REFUSED, {}, errors.NotAllowed),
        (RefusalKind.OTHER_JOB, {"job_id": "j"}, errors.NotAllowed),
        (RefusalKind.NOT_READY, {}, errors.Unavailable),
        (RefusalKind.INTERNAL, {"incident": "i-1"}, errors.InternalError),
    ],
)
def test_refusal_of_the_coordinator_has_its_class(
    kind: RefusalKind, facts: dict[str, str | int], wanted: type[errors.RallypointError]
) -> None:
    """With the coordinator's own text, and its facts as attributes."""
    status = refusal_status(Refusal(kind, tuple(facts.items())))
    error = error_of(status)

    assert (wanted, status.message) == (type(error), str(error))
    assert CODES[status.code].name == error.status
    shown = {name: getattr(error, name) for name in facts if name in vars(error)}
    assert shown in (facts, {})
    declared = {name for one in wanted.__mro__ for name in vars(one).get("__annotations__", ())}
    assert bool(shown) is bool(declared & facts.keys())


def test_errors_cross_processes() -> None:
    """A copy has the text, the status and all facts."""
    error = errors.LimitReached("text", status="ABORTED", limit="nodes per job", value=3)
    error.refusal = "LIMIT_REACHED"
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_errors_of_keys() -> None:
    """The missing keys, and where the history of changes begins."""
    missing = details_pb2.KeysMissing(missing_count=5, keys=["a", "b"])
    error = error_of(status_of(grpc.StatusCode.DEADLINE_EXCEEDED, missing))
    assert isinstance(error, errors.KeysMissing)
    assert (("a", "b"), 5) == (error.keys, error.missing_count)
    compacted = details_pb2.KeysCompacted(oldest_revision=40, epoch=7)
    error = error_of(status_of(grpc.StatusCode.OUT_OF_RANGE, compacted))
    assert isinstance(error, errors.KeysCompacted)

    assert (40, 7) == (error.oldest_revision, error.epoch)


def test_lost_events_are_an_error() -> None:
    """It says from which event on none is lost."""
    lost = details_pb2.EventsCompacted(oldest_sequence=40, epoch=7)
    error = error_of(status_of(grpc.StatusCode.OUT_OF_RANGE, lost))
    assert isinstance(error, errors.EventsCompacted)

    assert (40, 7) == (error.oldest_sequence, error.epoch)


def test_invalid_field_is_named() -> None:
    """By its path in the request."""
    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = details_pb2.REFUSAL_REASON_INVALID_FIELD
    status = pack_status(code, "name: is empty", None, reason=reason, field="name")
    error = error_of(status)

    assert (errors.InvalidRequest, "name") == (type(error), error.field)


def test_retry_info_is_read() -> None:
    """Also from a proxy, whose reasons are not ours."""
    status = Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message="busy")
    status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=2)))
    failure = read_failure(Ended(status))

    assert (2.0, "") == (failure.retry_s, failure.details.reason)


def test_status_without_details_keeps_its_text() -> None:
    """As gRPC makes it when a connection breaks."""
    error = error_of(Status(code=grpc.StatusCode.UNIMPLEMENTED.value[0], message="no such method"))

    assert (errors.Unsupported, "no such method") == (type(error), str(error))
