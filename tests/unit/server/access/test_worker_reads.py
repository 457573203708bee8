"""What a worker may read ends soon after its round, with its run, and with its agents."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from rallypoint.server.access import protecting
from rallypoint.server.access.gate import Gate
from rallypoint.server.access.protecting import Protected
from rallypoint.server.access.protection import Protection
from rallypoint.server.access.rules import Rules, parse_rules
from rallypoint.server.core.model.spec import Timing
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import event_service_pb2_grpc as events_grpc
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import job_service_pb2_grpc as jobs_grpc
from rallypoint.wire.errors import unpack_details
from support.access.protected import (
    AGENT,
    OPERATOR,
    RULES,
    bearer,
    entry,
    protected_site,
    write_rules,
)
from support.access.rounds import begun
from support.core.served import LIMIT_S
from support.routing.fleet import fleet, job_of

JOB = "job"
OVER = ("UNAUTHENTICATED", "ACCESS_TOKEN_EXPIRED")
OK = ("OK", "")
Metadata = tuple[tuple[str, str], ...]


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protecting, "LOOK_S", 0.02)


async def reads(
    channel: grpc.aio.Channel, metadata: Metadata, job_id: str = JOB
) -> tuple[str, str]:
    """Return how a read of the job ends: status and reason."""
    stub = jobs_grpc.JobServiceStub(channel)
    try:
        request = jobs_pb2.GetJobRequest(job_id=job_id)
        await stub.GetJob(request, timeout=LIMIT_S, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code().name, unpack_details(error.trailing_metadata()).reason
    return OK


async def watch(channel: grpc.aio.Channel, metadata: Metadata, job_id: str = JOB) -> Any:
    """Return a watch of the events of the job that has had its first answer."""
    call = events_grpc.EventServiceStub(channel).WatchEvents(
        events_pb2.WatchEventsRequest(job_id=job_id), metadata=metadata
    )
    async with asyncio.timeout(LIMIT_S):
        await call.read()
    return call


async def ending(call: Any) -> tuple[str, str]:
    """Read until a stream ends; return how: status and reason."""
    async with asyncio.timeout(LIMIT_S):
        with suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        code = await call.code()
        return code.name, unpack_details(await call.trailing_metadata()).reason


async def test_worker_reads_until_the_round_after_its_own_is_over(
    tmp_path: Path, lines: list[Any]
) -> None:
    """Then its reads are refused, and its open watch ends; those of later rounds stay."""
    async with (
        protected_site(tmp_path, needs_client=False) as site,
        site.channel() as channel,
    ):
        job = await begun(channel, JOB, AGENT)
        first, old = job.shown, await watch(channel, job.shown)
        await job.next_round()
        second, kept = job.shown, await watch(channel, job.shown)

        assert [OK, OK] == [await reads(channel, one) for one in (first, second)]
        await job.next_round()
        assert OVER == await ending(old)
        assert [OVER, OK, OK] == [await reads(channel, one) for one in (first, second, job.shown)]
        assert not kept.done()
    ended = [line for line in lines if line.get("effect") == "stream_ended"]
    assert [(f"worker of {JOB}", "WatchEvents", OVER[1])] == [
        (line["caller"], line["method"], line["outcome"]) for line in ended
    ]


async def test_worker_of_an_ended_run_reads_nothing(tmp_path: Path) -> None:
    """Neither that run, nor the next one of the job."""
    async with (
        protected_site(tmp_path, needs_client=False) as site,
        site.channel() as channel,
    ):
        job = await begun(channel, JOB, AGENT)
        call = await watch(channel, job.shown)
        await job.end_run()

        assert OVER == await ending(call)
        assert OVER == await reads(channel, job.shown)
        stub = jobs_grpc.JobServiceStub(channel)
        await job.leave()
        await stub.DeleteJob(
            jobs_pb2.DeleteJobRequest(job_id=JOB), timeout=LIMIT_S, metadata=bearer(OPERATOR)
        )
        again = await begun(channel, JOB, AGENT, 2)
        assert [OVER, OK] == [await reads(channel, one) for one in (job.shown, again.shown)]


async def test_worker_without_agents_reads_nothing(tmp_path: Path) -> None:
    """The token of its agent was taken out of the file, and its node is lost a lease later."""
    timing = Timing(window_ms=0, lease_ms=200, reconnect_grace_ms=1)
    rules = entry("trainer", "agent", AGENT) + entry("ann", "operator", OPERATOR)
    async with (
        protected_site(tmp_path, rules=rules, needs_client=False, timing=timing) as site,
        site.channel() as channel,
    ):
        job = await begun(channel, JOB, AGENT)
        call = await watch(channel, job.shown)
        write_rules(site.auth, entry("ann", "operator", OPERATOR))

        assert ("UNAUTHENTICATED", "ACCESS_TOKEN_INVALID") == await ending(job.agent.call)
        assert OVER == await ending(call)
        assert OVER == await reads(channel, job.shown)
        assert OK == await reads(channel, bearer(OPERATOR))


async def test_certificate_still_counts(tmp_path: Path) -> None:
    """A worker shows the certificate of its node, too: that may read, whatever the token may."""
    named = '[[certificate]]\nname = "node"\nrole = "viewer"\n'
    async with (
        protected_site(tmp_path, rules=RULES + "\n" + named) as site,
        site.channel(site.authority.issue("node")) as channel,
    ):
        job = await begun(channel, JOB, AGENT)
        await job.end_run()

        assert OK == await reads(channel, job.shown)


class Source:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules


async def test_owner_of_the_job_decides() -> None:
    """The coordinator that the worker has called may not know the rounds of its job."""
    gates = [Gate(Source(parse_rules(RULES))) for _ in range(2)]
    for gate in gates:
        gate.identities.use(b"of the store")
    protected = [Protected(Protection(authenticates=True), gate) for gate in gates]
    async with fleet(protected=protected) as both:
        asked, owner = both.members
        shard = owner.listening.host.find(1)
        assert shard is not None
        for gate in gates:
            gate.worker_tokens = shard.worker_tokens
        job = await begun(owner.channel, job_of(1), AGENT)
        first, call = job.shown, await watch(asked.channel, job.shown, job_of(1))
        await job.next_round()
        await job.next_round()
        await gates[1].check_streams()

        assert OVER == await ending(call)
        assert [OVER, OK] == [
            await reads(asked.channel, one, job_of(1)) for one in (first, job.shown)
        ]
