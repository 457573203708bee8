"""Every refusal has a reason that the contract lists, and RetryInfo where a retry makes sense."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from rallypoint.server.access import refusals as access
from rallypoint.server.access.caller import Caller, Proof
from rallypoint.server.contract import errors
from rallypoint.server.contract.calls import InvalidMessage, LimitExceeded
from rallypoint.server.contract.mappers import LIMITS
from rallypoint.server.contract.refusals import TABLE
from rallypoint.server.core.messages.refusals import Limit, Refusal, RefusalKind, limit_reached
from rallypoint.server.core.model.phase import Outcome
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.access import Role
from rallypoint.wire.errors import DOMAIN, REASON_PREFIX

SERVER = Path(__file__).resolve().parents[4] / "server" / "rallypoint" / "server"
CONTRACT = (
    Path(__file__).resolve().parents[4] / "proto" / "rallypoint" / "v1" / "error_details.proto"
)
NAMES = tuple(
    name.removeprefix(REASON_PREFIX) for name, number in details_pb2.RefusalReason.items() if number
)
FACTS: dict[RefusalKind, dict[str, str | int]] = {
    RefusalKind.LIMIT_REACHED: {"limit": Limit.JOBS.value, "value": 3},
    RefusalKind.JOB_ENDED: {"outcome": Outcome.FAILED.value},
}
"""Facts that are no plain words or numbers."""
VIEWER = Caller("ann", (Role.VIEWER,), Proof.TOKEN, ("train-*",))
STATUSES = {
    "INVALID_FIELD": errors.invalid_status(InvalidMessage("hello.run", "is wrong")),
    "NO_HELLO": errors.silent_status("silent"),
    "PROTOCOL_MISMATCH": errors.protocol_status(2, 3),
    "SESSION_LOST": errors.lost_status(),
    "COORDINATOR_ENDED": errors.ended_status(),
    "WATCHER_STALLED": errors.stalled_status(30),
    "NOT_OWNER": errors.not_owner_status("localhost:1", "c"),
    "NO_OWNER": errors.no_owner_status(3),
    "OWNER_LOST": errors.owner_lost_status(3, "localhost:1"),
    "STORE_UNAVAILABLE": errors.store_status("etcd cannot be reached"),
    "ACCESS_TOKEN_MISSING": access.token_missing().status,
    "ACCESS_TOKEN_INVALID": access.token_invalid().status,
    "ACCESS_TOKEN_EXPIRED": access.token_expired(VIEWER).status,
    "ROLE_NOT_ALLOWED": access.role_not_allowed((VIEWER,), (Role.OPERATOR,)).status,
    "JOB_NOT_ALLOWED": access.job_not_allowed((VIEWER,), "other").status,
}


def details_of(status: Status) -> dict[str, Message]:
    """Return the details of google.rpc by name."""
    found: dict[str, Message] = {}
    for packed in status.details:
        for kind in (ErrorInfo, RetryInfo, BadRequest):
            message = kind()
            if packed.Unpack(message):
                found[kind.__name__] = message
    return found


def status_of(kind: RefusalKind) -> Status:
    """Return the status of a refusal with all facts that its text and its detail name."""
    row = TABLE[errors.REASONS[kind]]
    facts: dict[str, str | int] = dict.fromkeys(re.findall(r"{(\w+)", row.text), 7)
    for field in () if row.detail is None else row.detail.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING:
            facts[field.name] = "x"
    for of_code in ("shown", "advice"):
        facts.pop(of_code, None)
    facts |= FACTS.get(kind, {})
    return errors.refusal_status(Refusal(kind, tuple(facts.items())))


def used_reasons() -> set[str]:
    """Return the reasons that the coordinator's code names."""
    texts = (path.read_text(encoding="utf-8") for path in SERVER.rglob("*.py"))
    return {name for text in texts for name in re.findall(REASON_PREFIX + r"([A-Z_]+)", text)}


def test_enum_lists_all_reasons_and_no_others() -> None:
    """What the core can refuse, and what the rest of the coordinator does."""
    kinds = {kind.name for kind in RefusalKind}

    assert set(NAMES) == kinds | used_reasons()
    assert {reason for reason in details_pb2.RefusalReason.values() if reason} - set(TABLE) == {
        details_pb2.REFUSAL_REASON_BARRIER_BROKEN
    }


@pytest.mark.parametrize("kind", RefusalKind)
def test_refusal_has_its_reason(kind: RefusalKind) -> None:
    """Under the contract's domain, with RetryInfo as the table says, and the field at fault."""
    status, row = status_of(kind), TABLE[errors.REASONS[kind]]
    found = details_of(status)
    info = found["ErrorInfo"]

    assert isinstance(info, ErrorInfo)
    assert (kind.name, DOMAIN) == (info.reason, info.domain)
    assert ("RetryInfo" in found) == (row.retry_ms is not None)
    assert ("BadRequest" in found) == bool(row.field)
    assert row.code.value[0] == status.code


@pytest.mark.parametrize("name", STATUSES)
def test_other_refusal_has_its_reason(name: str) -> None:
    """The same for what the core does not decide."""
    info = details_of(STATUSES[name])["ErrorInfo"]

    assert isinstance(info, ErrorInfo)
    assert (name, DOMAIN) == (info.reason, info.domain)


@pytest.mark.parametrize("name", NAMES)
def test_comment_says_whether_to_retry(name: str) -> None:
    """Exactly where the status carries RetryInfo."""
    text = CONTRACT.read_text(encoding="utf-8")
    match = re.search(r"((?:  // .*\n)+)  " + REASON_PREFIX + name + " =", text)
    assert match is not None
    comment = " ".join(line.strip(" /") for line in match[1].splitlines())
    status = STATUSES.get(name)
    if status is None and name in RefusalKind.__members__:
        status = status_of(RefusalKind[name])
    may_retry = re.search(r"(?<!not )\b[Rr]etry\b", comment) is not None

    assert may_retry != ("Do not retry" in comment), comment
    if name != "LIMIT_REACHED":  # tested below: only some of them
        assert may_retry == (status is not None and "RetryInfo" in details_of(status)), comment


@pytest.mark.parametrize("limit", Limit)
def test_limit_has_a_kind(limit: Limit) -> None:
    """Each for itself, from the core as well as from what stands before it."""
    for status in (
        errors.refusal_status(limit_reached(limit, 5)),
        errors.limit_status(LimitExceeded(limit, 5)),
    ):
        detail = details_pb2.LimitReached()
        assert status.details[0].Unpack(detail)

        assert (limit.value, 5, LIMITS[limit]) == (detail.limit, detail.value, detail.kind)
        assert "RetryInfo" not in details_of(status)
        assert details_pb2.LIMIT_KIND_UNSPECIFIED != detail.kind
        assert grpc.StatusCode.RESOURCE_EXHAUSTED.value[0] == status.code


def test_limit_that_passes_says_when() -> None:
    """In the detail of the contract and in that of google.rpc alike."""
    status = errors.limit_status(LimitExceeded(Limit.STREAMS_PER_HOST, 5, 2.5))
    detail = details_pb2.LimitReached()
    assert status.details[0].Unpack(detail)
    retry = details_of(status)["RetryInfo"]

    assert isinstance(retry, RetryInfo)
    assert (2_500, 2_500) == (
        detail.retry_after.ToMilliseconds(),
        retry.retry_delay.ToMilliseconds(),
    )


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ((2, 3), "the agent speaks protocol versions 2 to 3, this coordinator protocol version 1: "
         "upgrade the coordinator"),
        ((0, 0), "the agent speaks protocol version 0, this coordinator protocol version 1: "
         "upgrade the agent"),
    ],
)  # fmt: skip
def test_mismatch_says_which_side_to_upgrade(versions: tuple[int, int], text: str) -> None:
    """With both ranges, for programs and in words."""
    status = errors.protocol_status(*versions)
    detail = details_pb2.ProtocolMismatch()
    assert status.details[0].Unpack(detail)

    assert text == status.message
    assert (*versions, 1, 1) == (
        detail.agent_min,
        detail.agent_max,
        detail.coordinator_min,
        detail.coordinator_max,
    )
