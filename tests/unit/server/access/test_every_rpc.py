"""Every RPC that a coordinator offers refuses each stranger with the right code and an audit line.

The RPCs are those that reflection shows; a new one fails until it has a place in the sets below.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, MethodDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2
from msgspec import Struct
from structlog.testing import capture_logs

from rallypoint.base.log import merge_context
from rallypoint.server.hosting import protecting
from rallypoint.server.rpc.guards.access import audit
from rallypoint.server.rpc.guards.access.policy import POLICY
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from rallypoint.wire.errors import unpack_details
from support.access.authority import Authority
from support.access.protected import (
    AGENT,
    EXPIRED,
    OPERATOR,
    OTHER_AGENT,
    OTHER_OPERATOR,
    VIEWER,
    WRONG,
    Site,
    bearer,
    protected_site,
)
from support.contract.samples import JOB, OTHER_JOB, requests
from support.core.served import LIMIT_S, hello_of

Metadata = tuple[tuple[str, str], ...]
REFLECTION = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
HEALTH = "grpc.health.v1.Health/Check"
JOIN = {"AgentService/Session"}
CARRY = {"AgentService/Relay"}
ABOUT_NO_JOB = {"CoordinatorService/GetCoordinator"}
READS = {
    *("BarrierService/ListBarriers", "EventService/ListEvents", "EventService/WatchEvents"),
    *("JobService/GetJob", "JobService/ListJobs", "JobService/WatchJob", "JobService/WatchJobs"),
    *("JobService/ListRuns", "JobService/ListRounds"),
    *("NodeService/GetNode", "NodeService/ListNodes"),
}
CHANGES = {
    *("JobService/CreateJob", "JobService/CancelJob", "JobService/RestartJob"),
    *("JobService/UpdateJob", "JobService/DeleteJob"),
    *("NodeService/DrainNode", "NodeService/CordonNode", "NodeService/UncordonNode"),
}
WORKERS = {
    *("BarrierService/Arrive", "WorkerService/ReportProgress"),
    *("KeyValueService/GetKeys", "KeyValueService/PutKey", "KeyValueService/AddToKey"),
    *("KeyValueService/CompareAndSetKey", "KeyValueService/DeleteKey"),
    *("KeyValueService/WriteKeys", "KeyValueService/ListKeys", "KeyValueService/WatchKeys"),
}
QUIET_S = 0.3
"""How long a watch is heard that is let in."""
NO_ONE, NO_RIGHT = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


class Ended(Struct, frozen=True):
    """How a call has ended, as far as it was the gate that has ended it."""

    code: grpc.StatusCode | None
    """None: it was let in."""
    reason: str = ""


LET_IN = Ended(None)


class Stranger(Struct, frozen=True):
    """A caller that may not make most calls."""

    name: str
    """In audit lines."""
    token: str = ""
    join: Ended = LET_IN
    reads: Ended = LET_IN
    changes: Ended = LET_IN
    workers: Ended = LET_IN
    about_no_job: Ended = LET_IN

    def expected(self, method: str) -> Ended:
        """Return how its call of a method ends."""
        if method in CARRY:
            return self.join if self.join.code is NO_ONE else WRONG_ROLE
        sets = {"join": JOIN, "reads": READS, "changes": CHANGES, "workers": WORKERS}
        found = [name for name, methods in sets.items() if method in methods]
        if method in ABOUT_NO_JOB or method == REFLECTION:
            found.append("about_no_job")
        (name,) = found  # each RPC is in one set
        ended: Ended = getattr(self, name)
        return ended


def unknown(name: str, token: str, reason: str) -> Stranger:
    """Return a stranger all of whose calls are refused."""
    return Stranger(name, token, *[Ended(NO_ONE, reason)] * 5)


WRONG_ROLE, WRONG_JOB = Ended(NO_RIGHT, "ROLE_NOT_ALLOWED"), Ended(NO_RIGHT, "JOB_NOT_ALLOWED")
STRANGERS = (
    unknown("unknown", "", "ACCESS_TOKEN_MISSING"),
    unknown("unknown", WRONG, "ACCESS_TOKEN_INVALID"),
    unknown("bob", EXPIRED, "ACCESS_TOKEN_EXPIRED"),
    Stranger("dash", VIEWER, WRONG_ROLE, LET_IN, WRONG_ROLE, WRONG_ROLE),
    Stranger("trainer", AGENT, LET_IN, LET_IN, WRONG_ROLE, WRONG_ROLE),
    Stranger("ann", OPERATOR, WRONG_ROLE, LET_IN, LET_IN, WRONG_ROLE),
    Stranger("other trainer", OTHER_AGENT, WRONG_JOB, WRONG_JOB, WRONG_ROLE, WRONG_ROLE),
    Stranger("other ann", OTHER_OPERATOR, WRONG_ROLE, WRONG_JOB, WRONG_JOB, WRONG_ROLE),
)
OTHER_WORKER = Stranger(f"worker of {OTHER_JOB}", "", WRONG_ROLE, WRONG_JOB, WRONG_ROLE, WRONG_JOB)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the events that are logged, as they come, without a limit."""
    monkeypatch.setattr(audit, "REFUSALS_PER_MINUTE_MAX", 1_000)
    with capture_logs(processors=[merge_context]) as lines:
        yield lines


async def find_rpcs(channel: grpc.aio.Channel) -> dict[str, MethodDescriptorProto]:
    """Return the methods that reflection shows to an operator, by service and name."""
    ask = reflection_pb2.ServerReflectionRequest
    call: Any = channel.stream_stream(
        f"/{REFLECTION}",
        request_serializer=ask.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(timeout=LIMIT_S, metadata=bearer(OPERATOR))
    await call.write(ask(list_services=""))
    services = [one.name for one in (await call.read()).list_services_response.service]
    found: dict[str, MethodDescriptorProto] = {}
    for service in services:
        await call.write(ask(file_containing_symbol=service))
        answer = (await call.read()).file_descriptor_response
        for file in map(FileDescriptorProto.FromString, answer.file_descriptor_proto):
            for one in file.service:
                if f"{file.package}.{one.name}" == service:
                    prefix = service.removeprefix("rallypoint.v1.")
                    found |= {f"{prefix}/{method.name}": method for method in one.method}
    call.cancel()
    return found


async def call(
    channel: grpc.aio.Channel,
    name: str,
    method: MethodDescriptorProto,
    metadata: Metadata,
    expected: Ended = LET_IN,
) -> Ended:
    """Make a call that is in order, and return how the gate has ended it.

    A watch that is let in may have nothing to say; one that should not be ends by itself.
    """
    quiet_s = QUIET_S if expected == LET_IN else LIMIT_S
    path = f"/{name}" if name.startswith("grpc.") else f"/rallypoint.v1.{name}"
    request = requests("n1").get(method.name)
    raw = b"" if request is None else request.SerializeToString()
    kinds: dict[tuple[bool, bool], Any] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }
    make = kinds[method.client_streaming, method.server_streaming](path)
    try:
        if method.client_streaming:
            first = agent_pb2.SessionRequest(
                session_id=f"{1:032x}", connection=1, hello=hello_of(JOB, 1)
            )
            stream = make(timeout=LIMIT_S, metadata=metadata)
            opening = agent_pb2.RelayRequest(protocol_version=1) if name in CARRY else first
            await stream.write(opening.SerializeToString() if name in JOIN | CARRY else b"")
            await stream.read()
            stream.cancel()
        elif method.server_streaming:
            stream = make(raw, timeout=quiet_s, metadata=metadata)
            await stream.read()
            stream.cancel()
        else:
            await make(raw, timeout=LIMIT_S, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        reason = unpack_details(error.trailing_metadata()).reason
        return Ended(error.code(), reason) if error.code() in (NO_ONE, NO_RIGHT) else LET_IN
    return LET_IN


async def check(site: Site, stranger: Stranger, metadata: Metadata, lines: list[Any]) -> int:
    """Check how the calls of a stranger end, and their audit lines; return their number.

    Its certificate has no role.
    """
    channel = site.channel(site.authority.issue("a-stranger"))
    async with channel:
        found = await find_rpcs(channel)
        for name, method in found.items():
            if name.startswith("grpc.") and name != REFLECTION:
                continue
            lines.clear()
            expected = stranger.expected(name)

            assert (name, expected) == (name, await call(channel, name, method, metadata, expected))
            refused = [line for line in lines if is_refusal(line)]
            shown = [(line["caller"], line["method"], line["outcome"]) for line in refused]
            if expected == LET_IN:
                assert [] == shown
            else:
                assert [(stranger.name, method.name, expected.reason)] == shown
                assert refused[0]["peer"].startswith("ipv4:127.0.0.1:")
                assert refused[0]["log_level"] == "warning"
    return len(found)


def is_refusal(line: Any) -> bool:
    return bool(line["event"] == "audit" and line["log_level"] == "warning")


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda one: f"{one.name}-{one.token[:7]}")
async def test_stranger_is_refused(tmp_path: Path, lines: list[Any], stranger: Stranger) -> None:
    """Without a token, with a wrong or expired one, one of another role, or one of another job."""
    async with protected_site(tmp_path) as site:
        found = await check(site, stranger, bearer(stranger.token), lines)

    assert found >= len(JOIN | CARRY | ABOUT_NO_JOB | READS | CHANGES | WORKERS)


async def test_worker_of_another_job_is_refused(tmp_path: Path, lines: list[Any]) -> None:
    """Its token is good for its own job."""
    async with protected_site(tmp_path) as site:
        channel = site.channel(site.authority.issue("a-stranger"))
        async with channel:
            token = await worker_token(channel, OTHER_JOB, OTHER_AGENT)
            await check(site, OTHER_WORKER, ((WORKER_TOKEN_KEY, token),), lines)


async def test_worker_reads_its_own_job(tmp_path: Path) -> None:
    """It meets others at barriers, shares keys, reports, and reads its job, and nothing else."""
    async with protected_site(tmp_path) as site:
        channel = site.channel(site.authority.issue("a-stranger"))
        async with channel:
            metadata = ((WORKER_TOKEN_KEY, await worker_token(channel, JOB, AGENT)),)
            found = await find_rpcs(channel)
            about_all = {"JobService/ListJobs", "JobService/WatchJobs"}
            for name in sorted(WORKERS | READS - about_all):
                ended = await call(channel, name, found[name], metadata)

                assert (name, LET_IN) == (name, ended)
            for name in sorted(about_all):
                ended = await call(channel, name, found[name], metadata)

                assert (name, WRONG_JOB) == (name, ended)


async def worker_token(channel: grpc.aio.Channel, job_id: str, token: str) -> str:
    """Return the token of a worker of a new job that runs."""
    join: Any = channel.stream_stream(
        "/rallypoint.v1.AgentService/Session",
        request_serializer=agent_pb2.SessionRequest.SerializeToString,
        response_deserializer=agent_pb2.SessionResponse.FromString,
    )(metadata=bearer(token))
    await join.write(
        agent_pb2.SessionRequest(session_id=f"{1:032x}", connection=1, hello=hello_of(job_id, 1))
    )
    async with asyncio.timeout(LIMIT_S):
        welcome = (await join.read()).welcome
    KEPT.append(join)
    found: str = welcome.desired.run.worker_token
    assert found
    return found


KEPT: list[Any] = []
"""Streams of agents: one that is no longer referred to is cancelled."""


@pytest.mark.parametrize("kind", ["foreign", "none"])
async def test_certificate_of_another_authority_is_refused(
    tmp_path: Path, lines: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """In the handshake: no call of any RPC arrives. Each connection has an audit line."""
    monkeypatch.setattr(protecting, "LOOK_S", 0.02)
    foreign = Authority(tmp_path / "foreign")
    async with protected_site(tmp_path) as site:
        async with site.channel(site.authority.issue("a-stranger")) as channel:
            found = await find_rpcs(channel)
        pair = foreign.issue("ops-1") if kind == "foreign" else None
        for number, name in enumerate(found, 1):
            async with site.channel(pair) as channel:
                path = f"/{name}" if name.startswith("grpc.") else f"/rallypoint.v1.{name}"
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    make: Any = channel.unary_unary(path)
                    await make(b"", timeout=LIMIT_S, metadata=bearer(OPERATOR))

                assert grpc.StatusCode.UNAVAILABLE is raised.value.code()
            async with asyncio.timeout(LIMIT_S):
                while sum(line["event"] == "audit" for line in lines) < number:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    refused = [line for line in lines if line["event"] == "audit"]
    assert len(refused) >= len(found)  # a channel may try again before its call ends
    for line in refused:
        assert ("unknown", "NO_CALL", "warning") == (
            *(line["caller"], line["outcome"], line["log_level"]),
        )
        assert line["peer"].startswith("ipv4:127.0.0.1:")
        assert "authority" in line["hint"]


async def test_foreign_certificate_has_its_line_within_seconds(
    tmp_path: Path, lines: list[Any]
) -> None:
    """Without any change of the pauses."""
    async with protected_site(tmp_path) as site:
        async with site.channel(Authority(tmp_path / "foreign").issue("ops-1")) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                make: Any = channel.unary_unary(f"/{HEALTH}")
                await make(b"", timeout=LIMIT_S)
        async with asyncio.timeout(LIMIT_S):
            while not any(map(is_refusal, lines)):  # noqa: ASYNC110  # a list
                await asyncio.sleep(0.05)

    assert {"NO_CALL"} == {line["outcome"] for line in lines if is_refusal(line)}


async def test_probes_need_no_token(tmp_path: Path, lines: list[Any]) -> None:
    """The health service is open to anyone who gets a connection."""
    async with (
        protected_site(tmp_path, needs_client=False) as site,
        site.channel() as channel,
    ):
        make: Any = channel.unary_unary(f"/{HEALTH}")

        assert b"\x08\x01" == await make(b"", timeout=LIMIT_S)

    assert [] == [line for line in lines if line["event"] == "audit"]


async def test_every_rpc_has_a_row(tmp_path: Path) -> None:
    """What reflection shows and the policy are the same; nothing falls through."""
    async with (
        protected_site(tmp_path, needs_client=False) as site,
        site.channel() as channel,
    ):
        found = await find_rpcs(channel)

    named = {f"/{name}" if "." in name else f"/rallypoint.v1.{name}" for name in found}
    assert named <= set(POLICY)
    assert set(POLICY) - named <= {"/grpc.health.v1.Health/List"}  # of later releases of grpcio
