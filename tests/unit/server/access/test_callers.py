"""Who a caller is, what its answer says about it, and what the log says about its calls."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.server.access import gate
from rallypoint.server.access.protecting import ProtectionSettings
from rallypoint.server.api.jobs.service import JobService
from rallypoint.server.contract import limits
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.serve import Settings, serving
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import coordinator_service_pb2_grpc as coordinator_grpc
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import job_service_pb2_grpc as jobs_grpc
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import key_value_service_pb2_grpc as keys_grpc
from rallypoint.v1 import node_pb2
from rallypoint.wire.channel import client_options
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from rallypoint.wire.errors import unpack_details
from support.access.protected import (
    AGENT,
    EXPIRED,
    OPERATOR,
    OTHER_AGENT,
    VIEWER,
    WRONG,
    Site,
    bearer,
    protected_site,
)
from support.core.key_calls import change
from support.core.served import AT_ONCE, LIMIT_S, Agent, hello_of, served

EVERY = "a-token-with-every-role"
ASK = coordinator_pb2.GetCoordinatorRequest()
NO_ONE = grpc.StatusCode.UNAUTHENTICATED
Metadata = tuple[tuple[str, str], ...]


def put_of(key: str) -> keys_pb2.WriteKeysRequest:
    return keys_pb2.WriteKeysRequest(job_id="job", writes=[change(key, put={})], request_id="r")


async def ask(
    channel: grpc.aio.Channel, metadata: Metadata = ()
) -> coordinator_pb2.GetCoordinatorResponse:
    stub = coordinator_grpc.CoordinatorServiceStub(channel)
    found: coordinator_pb2.GetCoordinatorResponse = await stub.GetCoordinator(
        ASK, timeout=LIMIT_S, metadata=metadata
    )
    return found


async def refused(channel: grpc.aio.Channel, metadata: Metadata) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(channel, metadata)
    return raised.value.code(), unpack_details(raised.value.trailing_metadata()).reason


async def test_answer_says_who_has_called(tmp_path: Path) -> None:
    """By a token, with its jobs, or by a certificate; and how the coordinator is protected."""
    async with protected_site(tmp_path) as site:
        async with site.channel(site.authority.issue("n1")) as channel:
            by_token = await ask(channel, bearer(OTHER_AGENT))
        async with site.channel(site.authority.issue("ops-1")) as channel:
            by_certificate = await ask(channel)

    assert coordinator_pb2.Caller(
        name="other trainer",
        roles=[coordinator_pb2.ACCESS_ROLE_AGENT],
        proof=coordinator_pb2.CALLER_PROOF_ACCESS_TOKEN,
        jobs=["other*"],
    ) == (by_token.caller)
    assert coordinator_pb2.Caller(
        name="ops-1",
        roles=[coordinator_pb2.ACCESS_ROLE_OPERATOR],
        proof=coordinator_pb2.CALLER_PROOF_CERTIFICATE,
    ) == (by_certificate.caller)
    assert coordinator_pb2.CoordinatorAccess(
        tls=True, client_certificates=True, authenticates=True
    ) == (by_token.coordinator.access)


async def test_names_for_dns_count_too(tmp_path: Path) -> None:
    """Of a certificate whose common name has no role."""
    async with (
        protected_site(tmp_path) as site,
        site.channel(site.authority.issue("someone", ["ops-7"])) as channel,
    ):
        assert "ops-7" == (await ask(channel)).caller.name


async def test_without_protection_nothing_is_added() -> None:
    """As before: no one is asked, whatever a client sends."""
    async with served() as server:
        answer = await ask(server.channel, bearer(WRONG))

    assert not answer.HasField("caller")
    assert not answer.coordinator.HasField("access")


async def test_certificates_alone(tmp_path: Path) -> None:
    """Without an auth file, each certificate of the authority has every role."""
    async with protected_site(tmp_path, rules="") as site:
        async with site.channel(site.authority.issue("n1")) as channel:
            answer = await ask(channel)

            assert (NO_ONE, "ACCESS_TOKEN_INVALID") == await refused(channel, bearer(WRONG))

    assert "n1" == answer.caller.name
    assert [1, 2, 3, 5] == list(answer.caller.roles)


async def test_token_of_the_environment_alone(lines: list[Any]) -> None:
    """Without TLS and without a file: a hosted coordinator that shares a secret."""
    protection = ProtectionSettings(token=EVERY)
    async with (
        serving(Settings("127.0.0.1", 0, AT_ONCE, protection=protection)) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}", options=client_options()) as channel,
    ):
        answer = await ask(channel, bearer(EVERY))
        missing = await refused(channel, ())
        wrong = [await refused(channel, bearer(token)) for token in (WRONG, EVERY[:-1], " ")]
        schemes = [
            await refused(channel, (("authorization", text),))
            for text in (EVERY, f"Basic {EVERY}", "Bearer", "")
        ]

    assert "RALLYPOINT_TOKEN" == answer.caller.name
    assert coordinator_pb2.CoordinatorAccess(authenticates=True) == answer.coordinator.access
    assert (NO_ONE, "ACCESS_TOKEN_MISSING") == missing
    assert {(NO_ONE, "ACCESS_TOKEN_INVALID")} == {*wrong, *schemes}
    assert not any(EVERY in str(line) or WRONG in str(line) for line in lines)


@pytest.mark.parametrize("tokens", [(OPERATOR, OPERATOR), (WRONG, OPERATOR), (OPERATOR, WRONG)])
async def test_token_that_is_sent_twice_is_refused(tmp_path: Path, tokens: tuple[str, ...]) -> None:
    """Also when both are good: a proxy that adds its own would decide who calls."""
    twice = tuple(one for token in tokens for one in bearer(token))
    workers = (*bearer(OPERATOR), *[(WORKER_TOKEN_KEY, "a"), (WORKER_TOKEN_KEY, "b")])
    async with protected_site(tmp_path, needs_client=False) as site, site.channel() as channel:
        assert (NO_ONE, "ACCESS_TOKEN_INVALID") == await refused(channel, twice)
        assert (NO_ONE, "ACCESS_TOKEN_INVALID") == await refused(channel, workers)
        with pytest.raises(grpc.aio.AioRpcError, match="`authorization` was sent more than once"):
            await ask(channel, twice)


async def test_wrong_token_is_refused_in_spite_of_a_certificate(tmp_path: Path) -> None:
    """What is shown must be valid: else a mistake would stay hidden."""
    async with (
        protected_site(tmp_path) as site,
        site.channel(site.authority.issue("ops-1")) as channel,
    ):
        assert (NO_ONE, "ACCESS_TOKEN_INVALID") == await refused(channel, bearer(WRONG))
        assert (NO_ONE, "ACCESS_TOKEN_EXPIRED") == await refused(channel, bearer(EXPIRED))


async def test_method_without_a_row_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new method is closed to every role until the table names it."""
    monkeypatch.setattr(gate, "POLICY", {})
    async with protected_site(tmp_path, needs_client=False) as site, site.channel() as channel:
        code, reason = await refused(channel, bearer(OPERATOR))

    assert (grpc.StatusCode.PERMISSION_DENIED, "ROLE_NOT_ALLOWED") == (code, reason)


def audit_of(lines: list[Any]) -> list[dict[str, str]]:
    names = ("caller", "role", "by", "method", "job_id", "outcome", "log_level")
    return [
        {name: line[name] for name in names if name in line}
        for line in lines
        if line["event"] == "audit"
    ]


async def test_change_has_one_line(tmp_path: Path, lines: list[Any]) -> None:
    """With who asked, and how it has ended; reading has none."""
    async with protected_site(tmp_path, needs_client=False) as site, site.channel() as channel:
        stub = jobs_grpc.JobServiceStub(channel)
        create = jobs_pb2.CreateJobRequest(job_id="a", spec=hello_of("a", 1).spec, request_id="r1")
        await stub.CreateJob(create, timeout=LIMIT_S, metadata=bearer(OPERATOR))
        await stub.GetJob(
            jobs_pb2.GetJobRequest(job_id="a"), timeout=LIMIT_S, metadata=bearer(VIEWER)
        )
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.CancelJob(
                jobs_pb2.CancelJobRequest(job_id="b", request_id="r2"),
                timeout=LIMIT_S,
                metadata=bearer(OPERATOR),
            )

    ann = {"caller": "ann", "role": "operator", "by": "token", "log_level": "info"}
    assert [
        {**ann, "method": "CreateJob", "job_id": "a", "outcome": "OK"},
        {**ann, "method": "CancelJob", "job_id": "b", "outcome": "NOT_FOUND"},
    ] == audit_of(lines)


async def test_session_has_one_line(tmp_path: Path, lines: list[Any]) -> None:
    """When it is let in; what follows on its stream has none."""
    async with protected_site(tmp_path, needs_client=False) as site, site.channel() as channel:
        agent = session(site, channel)
        await agent.hello()
        await agent.read()
        for _ in range(5):
            await agent.check_alive()

    expected = {"caller": "trainer", "role": "agent", "by": "token", "method": "Session"}
    joined = [line for line in audit_of(lines) if line["outcome"] == "allowed"]
    assert [{**expected, "job_id": "a", "outcome": "allowed", "log_level": "info"}] == joined


@pytest.mark.parametrize(("fault", "outcome"), [("bug", "failed"), ("gone", "CANCELLED")])
async def test_change_that_ends_otherwise_has_its_line(
    tmp_path: Path, lines: list[Any], monkeypatch: pytest.MonkeyPatch, fault: str, outcome: str
) -> None:
    """A bug of the coordinator, or a client that has gone: its change may have counted."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def cancel_job(self: object, request: object, context: object) -> None:
        begun.set()
        if fault == "bug":
            raise ValueError("planted")
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(JobService, "CancelJob", cancel_job)
    async with protected_site(tmp_path, needs_client=False) as site, site.channel() as channel:
        call = jobs_grpc.JobServiceStub(channel).CancelJob(
            jobs_pb2.CancelJobRequest(job_id="a", request_id="r"),
            timeout=LIMIT_S,
            metadata=bearer(OPERATOR),
        )
        async with asyncio.timeout(LIMIT_S):
            await begun.wait()
            if fault == "bug":
                assert grpc.StatusCode.INTERNAL is await call.code()
            else:
                call.cancel()
                await ended.wait()

    assert [("ann", outcome)] == [(line["caller"], line["outcome"]) for line in audit_of(lines)]


def session(site: Site, channel: grpc.aio.Channel) -> Agent:
    """Return a connection of an agent with a token."""
    call = agent_grpc.AgentServiceStub(channel).Session(metadata=bearer(AGENT))
    return Agent(call, "a", f"{1:032x}")


async def test_valid_token_opens_the_door_of_a_limited_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others behind its address may have failed too often; they learn when to try again."""
    monkeypatch.setattr(limits, "ATTEMPTS_PER_MINUTE_MAX", 3)
    async with protected_site(tmp_path, needs_client=False) as site, site.channel() as channel:
        ends = [await refused(channel, bearer(WRONG)) for _ in range(5)]
        answer = await ask(channel, bearer(VIEWER))

    limited = (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
    assert [(NO_ONE, "ACCESS_TOKEN_INVALID")] * 3 + [limited] * 2 == ends
    assert "dash" == answer.caller.name


async def test_forged_name_of_a_worker_is_not_logged(tmp_path: Path, lines: list[Any]) -> None:
    """Anyone can write the name of a job into a token, and a long one."""
    name = "j" * 4_000
    job = base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
    forged = ((WORKER_TOKEN_KEY, f"1.1.{job}.{'0' * 64}"),)
    async with protected_site(tmp_path, needs_client=False) as site, site.channel() as channel:
        stub = keys_grpc.KeyValueServiceStub(channel)
        for metadata in (forged, (*bearer(VIEWER), *forged)):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.WriteKeys(
                    put_of("k"),
                    timeout=LIMIT_S,
                    metadata=metadata,
                )
            assert grpc.StatusCode.PERMISSION_DENIED is raised.value.code()

    assert ["unknown"] * 2 == [line["caller"] for line in audit_of(lines)]
    assert "jjjj" not in str(lines)


async def test_forged_tokens_of_workers_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    """Each takes a turn of the core, or a look at the request; after the limit none does."""
    monkeypatch.setattr(limits, "ATTEMPTS_PER_MINUTE_MAX", 4)
    metadata = ((WORKER_TOKEN_KEY, f"1.1.am9i.{'0' * 64}"),)
    keys = ("k", "", "k", "", "k", "")
    codes = []
    async with protected_site(tmp_path, needs_client=False) as site, site.channel() as channel:
        put = keys_grpc.KeyValueServiceStub(channel).WriteKeys
        for key in keys:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await put(put_of(key), timeout=LIMIT_S, metadata=metadata)
            codes.append(raised.value.code())

    limited = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [NO_ONE, grpc.StatusCode.INVALID_ARGUMENT] * 2 + [limited] * 2 == codes
    assert ["unknown"] * 4 == [line["caller"] for line in audit_of(lines)]


async def test_worker_of_an_adopted_round_is_known(tmp_path: Path) -> None:
    """A coordinator without a journal starts again: the round's members still hold its token."""
    async with (
        protected_site(tmp_path / "1", needs_client=False) as site,
        site.channel() as channel,
    ):
        agent = session(site, channel)
        await agent.hello()
        order = (await agent.read()).welcome.desired.run
    held = agent_pb2.HeldRound(
        order=order,
        state=node_pb2.NODE_STATE_STARTED,
        workers=[node_pb2.Worker(local_rank=0, pid=4_000)],
    )
    get, token = jobs_pb2.GetJobRequest(job_id="a"), order.worker_token
    changed = f"{token[:-4]}{'0000' if token[-4:] != '0000' else '1111'}"
    patient = Timing(window_ms=300)
    again = protected_site(tmp_path / "2", needs_client=False, timing=patient)
    async with again as site, site.channel() as channel:
        stub = jobs_grpc.JobServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as early:
            await stub.GetJob(get, timeout=LIMIT_S, metadata=((WORKER_TOKEN_KEY, token),))
        agent = session(site, channel)
        hello = hello_of("a", 1)
        hello.held.CopyFrom(held)  # instead of `ready`
        hello.ClearField("ready")
        await agent.write(agent_pb2.SessionRequest(hello=hello))
        while not (await agent.read()).desired.HasField("run"):  # adopted when the window is over
            pass
        found = await stub.GetJob(get, timeout=LIMIT_S, metadata=((WORKER_TOKEN_KEY, token),))
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await stub.GetJob(get, timeout=LIMIT_S, metadata=((WORKER_TOKEN_KEY, changed),))

    assert "a" == found.job.job_id
    assert (NO_ONE, NO_ONE) == (early.value.code(), late.value.code())
