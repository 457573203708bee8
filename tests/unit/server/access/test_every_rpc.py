"""Every RPC that a coordinator offers ends for every caller as the table of access says.

The RPCs are those that reflection shows; a new one fails until the table has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import MethodDescriptorProto
from google.protobuf.message import Message
from structlog.testing import capture_logs

from rallypoint.base.log import merge_context
from rallypoint.server.access import handshakes, protecting
from rallypoint.server.access.audit import NO_CALL
from rallypoint.server.access.policy import POLICY
from rallypoint.server.contract import limits
from rallypoint.server.core.model.spec import Timing
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from rallypoint.wire.errors import unpack_details
from support.access.authority import Authority
from support.access.protected import (
    AGENT,
    EXPIRED,
    OPERATOR,
    OTHER_AGENT,
    OTHER_OPERATOR,
    RELAY,
    RULES,
    VIEWER,
    WRONG,
    bearer,
    entry,
    protected_site,
)
from support.access.rounds import begun
from support.access.table import (
    ALL_JOBS,
    IDENTITIES,
    KINDS,
    REASONS,
    Answer,
    Identity,
    Kind,
    render,
)
from support.contract.reflected import find_rpcs
from support.contract.samples import JOB, OTHER_JOB, requests
from support.core.served import LIMIT_S, hello_of

Metadata = tuple[tuple[str, str], ...]
HEALTH = "grpc.health.v1.Health/Check"
QUIET_S = 0.3
"""How long a watch is heard that is let in."""
OWN_VIEWER, OWN_OPERATOR = "job-viewer-token-0123", "job-operator-token-01"
OWN_AGENT, OTHER_VIEWER = "job-agent-token-01234", "other-viewer-token-01"
OWN = "jobs = ['job', 'created']"
MORE = (
    entry("a dash", "viewer", OWN_VIEWER, more=OWN)
    + entry("a ann", "operator", OWN_OPERATOR, more=OWN)
    + entry("a trainer", "agent", OWN_AGENT, more=OWN)
    + entry("other dash", "viewer", OTHER_VIEWER, more="jobs = ['other*']")
)
TOKENS = {
    "none": "",
    "bad": WRONG,
    "expired": EXPIRED,
    "viewer": VIEWER,
    "viewer of the job": OWN_VIEWER,
    "viewer of another": OTHER_VIEWER,
    "operator": OPERATOR,
    "operator of the job": OWN_OPERATOR,
    "operator of another": OTHER_OPERATOR,
    "operator by certificate": "",
    "agent": AGENT,
    "agent of the job": OWN_AGENT,
    "agent of another": OTHER_AGENT,
    "relay": RELAY,
}
"""Of those that are no workers."""
NO_JOB: dict[str, Message] = {
    "ListEvents": events_pb2.ListEventsRequest(),
    "WatchEvents": events_pb2.WatchEventsRequest(),
}
"""Requests about all jobs, of methods that may also be about one."""
FIRST = {
    Kind.JOIN: agent_pb2.SessionRequest(
        session_id=f"{9:032x}", connection=1, hello=hello_of(JOB, 9)
    ).SerializeToString(),
    Kind.CARRY: agent_pb2.RelayRequest(protocol_version=1).SerializeToString(),
}
"""First messages of streams."""


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the events that are logged, as they come, without a limit."""
    monkeypatch.setattr(limits, "LINES_PER_MINUTE_MAX", 1_000)
    with capture_logs(processors=[merge_context]) as lines:
        yield lines


def request_of(name: str) -> bytes:
    """Return a request that knows nothing of another coordinator."""
    known = NO_JOB if name.endswith(ALL_JOBS) else requests("n1")
    request = known.get(name.removesuffix(ALL_JOBS).rpartition("/")[2])
    if request is None:
        return b""
    for field in ("known", "epoch", "start_revision"):
        if field in request.DESCRIPTOR.fields_by_name:
            request.ClearField(field)
    return request.SerializeToString()


async def call(
    channel: grpc.aio.Channel,
    name: str,
    method: MethodDescriptorProto,
    metadata: Metadata,
    expected: Answer,
) -> Answer:
    """Make a call that is in order, and return how it has ended because of who has made it.

    A watch that is let in may have nothing to say; one that should not be ends by itself.
    """
    quiet_s = QUIET_S if expected is Answer.YES else LIMIT_S
    raw = request_of(name)
    name = name.removesuffix(ALL_JOBS)
    path = f"/{name}" if name.startswith("grpc.") else f"/rallypoint.v1.{name}"
    if method.client_streaming:
        stream: Any = channel.stream_stream(path)(timeout=LIMIT_S, metadata=metadata)
        if expected in (Answer.YES, Answer.JOB):  # else it may end meanwhile, and hide its status
            await stream.write(FIRST.get(KINDS[name], b""))
        return await answer_of(stream, stream.read())
    if method.server_streaming:
        watch: Any = channel.unary_stream(path)
        stream = watch(raw, timeout=quiet_s, metadata=metadata)
        return await answer_of(stream, stream.read())
    unary: Any = channel.unary_unary(path)
    made = unary(raw, timeout=LIMIT_S, metadata=metadata)
    return await answer_of(made, made)


async def answer_of(made: Any, first: Awaitable[Any]) -> Answer:
    """Return how a call has ended, or that it was let in once it has an answer."""
    with suppress(grpc.aio.AioRpcError):
        if await first is not grpc.aio.EOF:
            made.cancel()
            return Answer.YES
    code = await made.code()
    ended = (code.name, unpack_details(await made.trailing_metadata()).reason)
    return next((answer for answer, known in REASONS.items() if known == ended), Answer.YES)


async def check(
    channel: grpc.aio.Channel, caller: Identity, metadata: Metadata, lines: list[Any]
) -> None:
    """Check how every call of a caller ends, and its audit lines."""
    found = await find_rpcs(channel, bearer(OPERATOR))

    assert sorted(found) == sorted(name for name in KINDS if not name.endswith(ALL_JOBS))
    for name, kind in KINDS.items():
        method = found[name.removesuffix(ALL_JOBS)]
        lines.clear()
        expected = caller.expected(kind)

        assert (name, expected) == (name, await call(channel, name, method, metadata, expected))
        audited = audit_of(caller, method.name, expected)
        async with asyncio.timeout(LIMIT_S):
            while len(refused := refusals_in(lines)) < len(audited):  # noqa: ASYNC110  # a list
                await asyncio.sleep(0)  # a servicer's refusal has its line after its status
        assert audited == [(line["caller"], line["method"], line["outcome"]) for line in refused]
        assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in refused)


def audit_of(caller: Identity, method: str, answer: Answer) -> list[tuple[str, str, str]]:
    """Return the audit lines of a call, if it is refused: caller, method, outcome."""
    if answer in (Answer.YES, Answer.ROUND):
        return []
    code, reason = REASONS[answer]
    return [(caller.name, method, code if answer is Answer.FORGED else reason)]


def refusals_in(lines: list[Any]) -> list[Any]:
    """Return the audit lines of calls that were refused."""
    return [line for line in lines if is_refusal(line) and line["outcome"] != NO_CALL]


def is_refusal(line: Any) -> bool:
    """Return whether a line is about a call that was refused, or a connection without one."""
    return bool(line["event"] == "audit" and line["log_level"] == "warning")


@pytest.mark.parametrize("name", TOKENS)
async def test_every_call_of_every_caller(tmp_path: Path, lines: list[Any], name: str) -> None:
    """Ends as the table of the documentation says, with an audit line if it is refused."""
    shown = "ops-1" if name == "operator by certificate" else "a-stranger"
    async with (
        protected_site(tmp_path, rules=f"{RULES}\n{MORE}") as site,
        site.channel(site.authority.issue(shown)) as channel,
    ):
        await check(channel, IDENTITIES[name], bearer(TOKENS[name]), lines)


@pytest.mark.parametrize("name", sorted(set(IDENTITIES) - set(TOKENS)))
async def test_every_call_of_every_worker(tmp_path: Path, lines: list[Any], name: str) -> None:
    """Ends as the table of the documentation says, with an audit line if it is refused.

    The lease is long: the agents send no heartbeats while these calls are made.
    """
    job_id, token = (OTHER_JOB, OTHER_AGENT) if name == "worker of another" else (JOB, AGENT)
    async with (
        protected_site(tmp_path, timing=Timing(window_ms=0, lease_ms=60_000)) as site,
        site.channel(site.authority.issue("a-stranger")) as channel,
    ):
        job = await begun(channel, job_id, token)
        worker = job.worker
        match name:
            case "worker of the round before":
                await job.next_round()
            case "worker of an old round":
                await job.next_round()
                await job.next_round()
            case "worker of an ended run":
                await job.end_run()
            case "forged":
                worker = worker[:-8] + "0" * 8
        await check(channel, IDENTITIES[name], ((WORKER_TOKEN_KEY, worker),), lines)


def test_page_is_fresh() -> None:
    """If this fails: make access."""
    page = Path(__file__).parents[4] / "docs/reference/access.md"

    assert f"{render()}\n" == page.read_text(encoding="utf-8")


def test_every_caller_and_call_is_on_the_page() -> None:
    """In one of its tables."""
    page = render()

    assert [] == [one.title for one in IDENTITIES.values() if f"| {one.title} |" not in page]
    shown = {name.rpartition("/")[2].removesuffix(ALL_JOBS) for name in KINDS}
    assert [] == [name for name in shown if f"{name}`" not in page]


def count_connections(lines: list[Any]) -> int:
    """Return how many connections without a call have been noted."""
    return sum(line["connections"] for line in lines if line["event"] == "audit")


@pytest.mark.parametrize("kind", ["foreign", "none"])
async def test_certificate_of_another_authority_is_refused(
    tmp_path: Path, lines: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """In the handshake: no call of any RPC arrives. Audit lines count the connections."""
    monkeypatch.setattr(protecting, "LOOK_S", 0.02)
    monkeypatch.setattr(handshakes, "LINE_S", 0.0)
    foreign = Authority(tmp_path / "foreign")
    async with protected_site(tmp_path) as site:
        async with site.channel(site.authority.issue("a-stranger")) as channel:
            found = await find_rpcs(channel, bearer(OPERATOR))
        pair = foreign.issue("ops-1") if kind == "foreign" else None
        for number, name in enumerate(found, 1):
            async with site.channel(pair) as channel:
                path = f"/{name}" if name.startswith("grpc.") else f"/rallypoint.v1.{name}"
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    make: Any = channel.unary_unary(path)
                    await make(b"", timeout=LIMIT_S, metadata=bearer(OPERATOR))

                assert grpc.StatusCode.UNAVAILABLE is raised.value.code()
            async with asyncio.timeout(LIMIT_S):
                while count_connections(lines) < number:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    refused = [line for line in lines if line["event"] == "audit"]
    assert count_connections(lines) >= len(found)  # a channel may try again before its call ends
    for line in refused:
        assert ("unknown", "NO_CALL", "warning") == (
            *(line["caller"], line["outcome"], line["log_level"]),
        )
        assert "authority" in line["hint"]


async def test_foreign_certificate_has_its_line_at_the_end(
    tmp_path: Path, lines: list[Any]
) -> None:
    """A coordinator that ends waits for no minute."""
    async with protected_site(tmp_path) as site:
        async with site.channel(Authority(tmp_path / "foreign").issue("ops-1")) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                make: Any = channel.unary_unary(f"/{HEALTH}")
                await make(b"", timeout=LIMIT_S)

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
        found = await find_rpcs(channel, bearer(OPERATOR))

    named = {f"/{name}" if "." in name else f"/rallypoint.v1.{name}" for name in found}
    assert named <= set(POLICY)
    assert set(POLICY) - named <= {"/grpc.health.v1.Health/List"}  # of later releases of grpcio
