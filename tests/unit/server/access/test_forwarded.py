"""A forwarded call has its caller, signed: the owner believes that and nothing that looks alike."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.server.access.caller import Caller, Proof
from rallypoint.server.access.gate import Gate
from rallypoint.server.access.identities import KEY, Identities
from rallypoint.server.access.marks import PEER_KEY, SHARD_KEY
from rallypoint.server.access.protecting import Protected
from rallypoint.server.access.protection import Protection
from rallypoint.server.access.rules import Rules, parse_rules
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import job_service_pb2_grpc as jobs_grpc
from rallypoint.wire.access import Role
from rallypoint.wire.errors import unpack_details
from support.access.protected import OPERATOR, RULES, VIEWER, WRONG, bearer
from support.core.served import LIMIT_S, hello_of
from support.routing.fleet import Hanging, fleet, hanging, job_of

CREATE = "/rallypoint.v1.JobService/CreateJob"
NO_ONE = grpc.StatusCode.UNAUTHENTICATED
ANN = Caller("ann", (Role.OPERATOR,), Proof.TOKEN)
Metadata = tuple[tuple[str, str], ...]


class Source:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules


def protected(secret: bytes = b"of the store") -> Protected:
    gate = Gate(Source(parse_rules(RULES)))
    gate.identities.use(secret)
    return Protected(Protection(authenticates=True), gate)


def audit_of(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["caller"], line["outcome"]) for line in lines if line["event"] == "audit"]


async def create(
    channel: grpc.aio.Channel, job_id: str, metadata: Metadata
) -> tuple[grpc.StatusCode, str]:
    """Create a job; return how that has ended."""
    request = jobs_pb2.CreateJobRequest(
        job_id=job_id, spec=hello_of(job_id, 1).spec, request_id="r"
    )
    try:
        await jobs_grpc.JobServiceStub(channel).CreateJob(
            request, timeout=LIMIT_S, metadata=metadata
        )
    except grpc.aio.AioRpcError as error:
        return error.code(), unpack_details(error.trailing_metadata()).reason
    return grpc.StatusCode.OK, ""


OK = (grpc.StatusCode.OK, "")


async def test_forwarded_call_is_allowed_and_has_one_line(lines: list[Any]) -> None:
    """At the coordinator that was called; the owner asks nothing more."""
    async with fleet(protected=[protected(), protected()]) as both:
        first, _ = both.members

        assert [OK, OK] == [
            await create(first.channel, job_of(shard), bearer(OPERATOR)) for shard in (0, 1)
        ]
    assert [("ann", "OK")] * 2 == audit_of(lines)


async def test_forwarded_call_has_no_token() -> None:
    """Instead it has who calls, for this call alone."""
    async with fleet(1, protected=[protected()]) as alone, hanging() as (address, owner):
        await alone.take(1)
        alone.table.owners[1] = address
        alone.table.change()
        call = jobs_grpc.JobServiceStub(alone.members[0].channel).GetJob(
            jobs_pb2.GetJobRequest(job_id=job_of(1)), metadata=(*bearer(VIEWER), ("own", "x"))
        )
        await owner.taken.acquire()
        call.cancel()
    metadata = dict(found for found in owner_metadata(owner))
    assert "authorization" not in metadata
    assert VIEWER not in str(metadata)
    assert {"1", "x"} == {metadata[SHARD_KEY], metadata["own"]}
    identities = Identities(lambda: time.time_ns() // 1_000_000)
    identities.use(b"of the store")
    read = identities.verify(
        metadata[KEY], method="/rallypoint.v1.JobService/GetJob", shard=metadata[SHARD_KEY]
    )
    assert read is not None
    assert ("dash", (Role.VIEWER,)) == (read[0].name, read[0].roles)
    assert read[1] == metadata[PEER_KEY]


def owner_metadata(owner: Hanging) -> list[tuple[str, str]]:
    return [(key, value) for key, value in owner.metadata if isinstance(value, str)]


@pytest.mark.parametrize("token", ["", WRONG])
async def test_call_that_only_says_that_it_is_forwarded(lines: list[Any], token: str) -> None:
    """It is one of a client, who has to say who it is."""
    marks = ((SHARD_KEY, "0"), (PEER_KEY, "ipv4:10.9.9.9:1"))
    async with fleet(protected=[protected(), protected()]) as both:
        found = await create(both.members[0].channel, job_of(0), (*bearer(token), *marks))

    reason = "ACCESS_TOKEN_INVALID" if token else "ACCESS_TOKEN_MISSING"
    assert (NO_ONE, reason) == found
    assert not any("10.9.9.9" in str(line) for line in lines)


async def test_client_does_not_pose_as_a_coordinator() -> None:
    """Its marks are ignored: the call goes to the owner, and its own address has made it."""
    marks = ((SHARD_KEY, "0"), (PEER_KEY, "ipv4:10.9.9.9:1"))
    async with fleet(1, protected=[protected()]) as alone, hanging() as (address, owner):
        await alone.take(1)
        alone.table.owners[1] = address
        alone.table.change()
        call = jobs_grpc.JobServiceStub(alone.members[0].channel).GetJob(
            jobs_pb2.GetJobRequest(job_id=job_of(1)), metadata=(*bearer(VIEWER), *marks)
        )
        async with asyncio.timeout(LIMIT_S):
            await owner.taken.acquire()
        call.cancel()
    found = owner_metadata(owner)

    assert ["1"] == [value for key, value in found if key == SHARD_KEY]
    assert "10.9.9.9" not in str(found)


@pytest.mark.parametrize("fault", ["secret", "method", "shard", "job", "text"])
async def test_forged_caller_is_refused(lines: list[Any], fault: str) -> None:
    """Signed with another secret, for another call, or not at all; a valid token does not help."""
    forger = Identities(lambda: time.time_ns() // 1_000_000)
    forger.use(b"guessed" if fault == "secret" else b"of the store")
    signed = forger.sign(
        ANN,
        method=CREATE if fault != "method" else CREATE.replace("Create", "Delete"),
        shard="1" if fault == "shard" else "0",
        job_id="another" if fault == "job" else job_of(0),
        peer="ipv4:10.0.0.1:1",
    )
    text = "ann" if fault == "text" else signed
    metadata = (*bearer(OPERATOR), (SHARD_KEY, "0"), (KEY, text))
    async with fleet(protected=[protected(), protected()]) as both:
        found = await create(both.members[0].channel, job_of(0), metadata)

    denied = (grpc.StatusCode.PERMISSION_DENIED, "JOB_NOT_ALLOWED")
    assert (denied if fault == "job" else (NO_ONE, "ACCESS_TOKEN_INVALID")) == found
    assert 1 == len(audit_of(lines))


async def test_coordinators_are_protected_one_after_another() -> None:
    """One that asks no one yet passes the token on: the owner asks for it."""
    async with fleet(protected=[Protected(), protected()]) as both:
        first, _ = both.members

        assert [OK, (NO_ONE, "ACCESS_TOKEN_MISSING")] == [
            await create(first.channel, job_of(1), bearer(OPERATOR)),
            await create(first.channel, job_of(3), ()),
        ]
        assert OK == await create(both.members[1].channel, job_of(2), bearer(OPERATOR))
