"""What holds for every RPC that a running coordinator offers; a new one fails until it is listed.

Each ends by itself within a bound. Each refusal says why, for programs. Lists have pages, changes
can be repeated, and docs/operations.md names them all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from msgspec import Struct

from rallypoint.server.access.usage.stalls import Stalls
from rallypoint.server.contract import limits
from rallypoint.server.contract.errors import REASONS
from rallypoint.server.contract.refusals import TABLE
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from rallypoint.wire.errors import REASON_PREFIX, unpack_details
from rallypoint.wire.limits import SERVICES, Kind, find_rule
from support.contract.boundaries import variants
from support.contract.reflected import find_rpcs
from support.contract.samples import (
    JOB,
    OTHER_JOB,
    full_hello,
    ready_hello,
    reports,
    requests,
)
from support.core.served import LIMIT_S, Served, served

REPOSITORY = Path(__file__).resolve().parents[3]
TURN_S = LIMIT_S
"""Far longer than a turn of the coordinator, or a few of them for a long list."""
WAIT_S = 3.0
"""Deadline of the calls that wait; the coordinator ends the wait before it."""
STALL_S_MAX = 30.0
"""Longest time that a reader of a stream may take to read one answer."""
PAGE_MAX = 1_000
AT_ONCE = 32
"""Calls at one time."""


class Rpc(Struct, frozen=True):
    """What is promised of one RPC."""

    ends: str = "turn"
    """turn: it waits for the coordinator's next turn only; timeout: at most as long as its field
    `timeout` says; stall: a stream, which ends when its reader is too slow; session: Welcome
    has the deadlines."""
    repeats: str = ""
    """Why a change may be repeated without a request_id; empty: it has one, or changes nothing."""
    repeated: str = ""
    """What bounds a repeated field of an answer that is no page."""


READ = Rpc()
CHANGE = Rpc()
STREAM = Rpc("stall")
RPCS = {
    "AgentService/Relay": Rpc("session", repeats="each agent's messages, as on its own stream"),
    "AgentService/Session": Rpc("session", repeats="reports have numbers, and Hello the rest"),
    "BarrierService/Arrive": Rpc("timeout", repeated="one payload for each participant"),
    "BarrierService/ListBarriers": READ,
    "CoordinatorService/GetCoordinator": READ,
    "EventService/ListEvents": READ,
    "EventService/WatchEvents": STREAM,
    "EvidenceService/GetEvidence": Rpc(repeated="one entry for each rank of the request"),
    "EvidenceService/ReportEvidence": Rpc(repeats="a rank counts once"),
    "EvidenceService/TakeEvidence": Rpc(
        repeats="workers keep running", repeated="one entry for each rank of the request"
    ),
    "JobService/CancelJob": CHANGE,
    "JobService/CreateJob": CHANGE,
    "JobService/DeleteJob": CHANGE,
    "JobService/GetJob": READ,
    "JobService/ListJobs": READ,
    "JobService/ListRounds": READ,
    "JobService/ListRuns": READ,
    "JobService/RestartJob": CHANGE,
    "JobService/UpdateJob": CHANGE,
    "JobService/WatchJob": STREAM,
    "JobService/WatchJobs": STREAM,
    "KeyValueService/GetKeys": Rpc("timeout", repeated="one value for each key of the request"),
    "KeyValueService/ListKeys": READ,
    "KeyValueService/WatchKeys": STREAM,
    "KeyValueService/WriteKeys": Rpc(repeated="one result for each write of the request"),
    "NodeService/CordonNode": CHANGE,
    "NodeService/DrainNode": CHANGE,
    "NodeService/GetNode": READ,
    "NodeService/ListNodes": READ,
    "NodeService/UncordonNode": CHANGE,
    "WorkerService/ReportProgress": Rpc(repeats="the highest step counts"),
}
OF_ANY_JOB = {"EventService/ListEvents", "EventService/WatchEvents", "JobService/CreateJob"}
"""They may name a job that the coordinator does not know."""
EACH = pytest.mark.parametrize("name", RPCS)
STREAMS = pytest.mark.parametrize(
    "name", [name for name, rpc in RPCS.items() if rpc.ends == "stall"]
)
PLAIN = {
    kind.name
    for kind, reason in REASONS.items()
    if TABLE[reason].detail is None and not TABLE[reason].field
}
"""Reasons without facts: their name says everything."""


def method_of(name: str) -> MethodDescriptor:
    """Return the descriptor of an RPC of this checkout."""
    service, _, method = name.partition("/")
    (found,) = (one for one in SERVICES if one.name == service)
    descriptor: MethodDescriptor = found.methods_by_name[method]
    return descriptor


async def test_every_rpc_is_classified() -> None:
    """None is offered that is not in the table above, and the other way round."""
    async with served() as server:
        found = await find_rpcs(server.channel)

    assert set(RPCS) == {name for name in found if not name.startswith("grpc.")}


def test_every_rpc_is_in_the_documentation() -> None:
    """In the list of docs/operations.md."""
    lines = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8").splitlines()

    assert [name for name in RPCS if f"rallypoint.v1.{name}" not in lines] == []


@EACH
def test_rpc_has_a_bound(name: str) -> None:
    """A wait has a longest one; a stream is never without a limit."""
    method, rpc = method_of(name), RPCS[name]
    fields = method.input_type.fields_by_name

    assert (method.server_streaming, method.client_streaming) == (
        rpc.ends in ("stall", "session"),
        rpc.ends == "session",
    )
    assert ("timeout" in fields) == (rpc.ends == "timeout")
    if rpc.ends == "timeout":
        rule = find_rule(fields["timeout"])
        assert rule is not None
        assert rule.high <= 86_400_000


@EACH
def test_list_has_pages(name: str) -> None:
    """A page has a largest size and a token; no other answer has an unbounded list."""
    method, rpc = method_of(name), RPCS[name]
    answer, fields = method.output_type, method.input_type.fields_by_name
    lists = [field.name for field in answer.fields if _is_list(field)]
    if name.partition("/")[2].startswith("List"):
        size, token = find_rule(fields["page_size"]), find_rule(fields["page_token"])
        assert size is not None
        assert token is not None
        assert (PAGE_MAX, True) == (size.high, bool(token.chars_max or token.bytes_max))
        assert "next_page_token" in answer.fields_by_name
        assert 1 == len(lists)
    elif not method.server_streaming:
        assert "page_size" not in fields
        assert bool(rpc.repeated) == bool(lists)


def _is_list(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


@EACH
def test_change_can_be_repeated(name: str) -> None:
    """It has a request_id, or a reason in the table; reading has neither."""
    method = name.partition("/")[2]
    has_id = "request_id" in method_of(name).input_type.fields_by_name
    is_reading = method.startswith(("Get", "List", "Watch"))

    assert [is_reading, has_id, bool(RPCS[name].repeats)].count(True) == 1


class Probe:
    """Calls of one RPC, and how they end."""

    def __init__(self, server: Served, name: str, token: str) -> None:
        method = method_of(name)
        path = f"/{method.containing_service.full_name}/{method.name}"
        make: Any = (
            server.channel.unary_stream if method.server_streaming else server.channel.unary_unary
        )
        answers = GetMessageClass(method.output_type)
        self._call: Any = make(
            path,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answers.FromString,
        )
        self._is_stream = method.server_streaming
        self._metadata = ((WORKER_TOKEN_KEY, token),)
        self._limit_s = WAIT_S if RPCS[name].ends == "timeout" else TURN_S
        self._room = asyncio.Semaphore(AT_ONCE)
        self.reasons: set[str] = set()
        """Of the refusals."""
        self.faults: list[str] = []

    def begin(self, request: Message) -> Any:
        return self._call(request, timeout=self._limit_s, metadata=self._metadata)

    async def find_limit(self, request: Message) -> details_pb2.LimitReached | None:
        """Begin a stream, and end it; return the limit for which it was refused, if any."""
        stream = self.begin(request)
        try:
            await stream.read()
        except grpc.aio.AioRpcError as error:
            detail = unpack_details(error.trailing_metadata()).own
            assert isinstance(detail, details_pb2.LimitReached)
            return detail
        finally:
            stream.cancel()
        return None

    async def call(self, what: str, request: Message) -> None:
        async with self._room:
            call = self.begin(request)
            try:
                await (call.read() if self._is_stream else call)
            except grpc.aio.AioRpcError as error:
                fault = self._find_fault(error)
                if fault:
                    self.faults.append(f"{what}: {fault}: {error.code()} {error.details()}")
            finally:
                call.cancel()

    def _find_fault(self, error: grpc.aio.AioRpcError) -> str:
        """Return what is missing in a refusal, or ""."""
        details = unpack_details(error.trailing_metadata())
        if f"{REASON_PREFIX}{details.reason}" not in details_pb2.RefusalReason.keys():
            return "no reason" if not self._is_late(error) else ""
        self.reasons.add(details.reason)
        if error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
            return "a bug"
        if details.own is None and not details.field and details.reason not in PLAIN:
            return "no detail"
        return ""

    def _is_late(self, error: grpc.aio.AioRpcError) -> bool:
        """Return whether a stream was merely quiet until the client's deadline."""
        return self._is_stream and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def begin_at_once(sample: Message) -> None:
    """Let a watch show what there is."""
    for field in ("start_revision", "epoch", "after_revision", "after_sequence"):
        if field in sample.DESCRIPTOR.fields_by_name:
            sample.ClearField(field)


async def probe(server: Served, name: str) -> tuple[Probe, Message]:
    """Return a probe of an RPC about a job that runs, and a request that is in order."""
    agent = server.agent(JOB, 1)
    await agent.hello()
    token = (await agent.read()).welcome.desired.run.worker_token
    assert token
    sample = requests("n1").get(name.partition("/")[2])
    assert sample is not None, "tests/support/contract/samples.py needs a request of this RPC"
    return Probe(server, name, token), sample


@pytest.mark.parametrize("name", [name for name, rpc in RPCS.items() if rpc.ends != "session"])
async def test_every_refusal_has_typed_details(name: str) -> None:
    """Of an empty request, of one about an unknown job, and of every field out of its range.

    An agent of another job notices nothing of all that.
    """
    async with served() as server:
        other = await server.join(OTHER_JOB, 9)
        calls, sample = await probe(server, name)
        unknown = type(sample)()
        unknown.CopyFrom(sample)
        fields = sample.DESCRIPTOR.fields_by_name
        if "job_id" in fields:
            unknown.job_id = "no such job"  # type: ignore[attr-defined]  # checked above
        await calls.call("empty", type(sample)())
        await calls.call("unknown job", unknown)
        about_unknown = set(calls.reasons)
        several = [calls.call(what, request) for what, request in variants(sample)]
        await asyncio.gather(*several)
        await other.check_alive()

    assert [] == calls.faults
    rules = {field.name: find_rule(field) for field in method_of(name).input_type.fields}
    if any(rule and rule.kind is Kind.WISH and name != "job_id" for name, rule in rules.items()):
        assert "INVALID_FIELD" in calls.reasons
    assert (
        "job_id" not in fields or name in OF_ANY_JOB or {"UNKNOWN_JOB", "OTHER_JOB"} & about_unknown
    )


async def end_of_stream(server: Served, number: int, envelope: Any) -> tuple[str, str]:
    """Return why a stream with this last message ends, and what is missing in its end, or "".

    A report follows the Hello of an agent that is alone in its job.
    """
    agent = server.agent(f"{JOB}-{number}", 100 + number)
    if envelope.WhichOneof("message") != "hello":
        await agent.hello()
        envelope.epoch = envelope.epoch and (await agent.read()).epoch
    envelope.session_id = envelope.session_id and agent.session_id
    await agent.call.write(envelope)
    await agent.call.done_writing()
    code, text = await agent.ending()
    server.agents.remove(agent)
    reason = unpack_details(await agent.call.trailing_metadata()).reason
    has_reason = f"{REASON_PREFIX}{reason}" in details_pb2.RefusalReason.keys()
    is_ours = code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    is_right = code is grpc.StatusCode.OK or (has_reason and not is_ours)
    return reason, "" if is_right else f"{code}: {text}"


@pytest.mark.parametrize("kind", ["hello", "held", *reports(1)])
async def test_every_refused_stream_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """For a Hello and for each report, with every field out of its range; no other stream ends."""
    monkeypatch.setattr(limits, "NEW_RUNS_AT_ONCE_MAX", 10_000)
    samples = {"hello": ready_hello(1), "held": full_hello(1, 1), **reports(1)}
    arm = "hello" if kind == "held" else kind
    valid: Any = agent_pb2.SessionRequest(session_id="s", connection=1, epoch=1)
    valid.sequence = 0 if arm in ("hello", "heartbeat") else 1
    getattr(valid, arm).CopyFrom(samples[kind])
    room, reasons, faults = asyncio.Semaphore(AT_ONCE), set[str](), list[str]()

    async def send(number: int, what: str, envelope: Any) -> None:
        async with room:
            reason, fault = await end_of_stream(server, number, envelope)
        reasons.add(reason)
        faults.extend([f"{what}: {fault}"] if fault else [])

    async with served() as server:
        other = await server.join(OTHER_JOB, 9)
        several = [send(number, *one) for number, one in enumerate(variants(valid))]
        await asyncio.gather(*several)
        await other.check_alive()

    assert [] == faults
    assert "INVALID_FIELD" in reasons


@STREAMS
async def test_every_answer_of_a_stream_is_written_under_a_limit(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """So a reader that is too slow ends its own stream, and holds nothing for ever."""
    limits_s: list[float] = []
    begin = Stalls.begin

    def note(self: Stalls, scope: asyncio.Timeout, limit_s: float) -> None:
        limits_s.append(limit_s)
        begin(self, scope, limit_s)

    async with served() as server:
        calls, sample = await probe(server, name)
        begin_at_once(sample)
        monkeypatch.setattr(Stalls, "begin", note)
        await calls.call("sample", sample)

    assert [] == calls.faults
    assert set() == calls.reasons
    assert limits_s
    assert max(limits_s) <= STALL_S_MAX


LIMITED = [
    ("EventService/WatchEvents", "EVENT_WATCHES_PER_JOB_MAX", "WATCHES_PER_JOB"),
    ("EventService/WatchEvents", "EVENT_WATCHES_PER_HOST_MAX", "WATCHES_PER_HOST"),
    ("JobService/WatchJob", "WATCHERS_PER_JOB_MAX", "WATCHES_PER_JOB"),
    ("JobService/WatchJob", "WATCHERS_PER_HOST_MAX", "WATCHES_PER_HOST"),
    ("JobService/WatchJobs", "JOBS_WATCHERS_MAX", "WATCHES"),
    ("JobService/WatchJobs", "WATCHERS_PER_HOST_MAX", "WATCHES_PER_HOST"),
    ("KeyValueService/WatchKeys", "KEY_WATCHES_PER_JOB_MAX", "WATCHES_PER_JOB"),
    ("KeyValueService/WatchKeys", "KEY_WATCHES_PER_HOST_MAX", "WATCHES_PER_HOST"),
]
"""RPC, the limit of its open streams, and the kind of the refusal of one too many."""


def test_every_stream_is_limited() -> None:
    """By job or coordinator, and by host; a new one fails here."""
    assert {name: 2 for name, rpc in RPCS.items() if rpc.ends == "stall"} == Counter(
        name for name, _, _ in LIMITED
    )


@pytest.mark.parametrize(("name", "limit", "kind"), LIMITED)
async def test_one_stream_too_many_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: str, kind: str
) -> None:
    """With the limit and its kind; one that ends makes room."""
    monkeypatch.setattr(limits, limit, 1)
    async with asyncio.timeout(LIMIT_S), served() as server:
        calls, sample = await probe(server, name)
        begin_at_once(sample)
        first = calls.begin(sample)
        await first.read()
        detail = await calls.find_limit(sample)
        assert detail is not None
        first.cancel()
        while await calls.find_limit(sample) is not None:
            pass

    assert details_pb2.LimitKind.Value(f"LIMIT_KIND_{kind}") == detail.kind
    assert 1 == detail.value
