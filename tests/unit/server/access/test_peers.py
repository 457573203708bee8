"""What one host may use, and that the agents of others do not notice one that wants everything."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from structlog.testing import capture_logs

from rallypoint.agent.session.dismissal import Dismissed
from rallypoint.agent.session.endings import BrokenStream, read_ending
from rallypoint.base.limits import NODES_PER_JOB_MAX
from rallypoint.server.access.usage.peers import Peers, host_of
from rallypoint.server.agents.connections import BYTES_PER_RUN
from rallypoint.server.contract import errors, limits
from rallypoint.server.contract.calls import LimitExceeded
from rallypoint.server.core.messages.refusals import Limit, Refusal, RefusalKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.core.sessions import admission, sessions
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.v1 import job_service_pb2 as service_pb2
from rallypoint.v1 import job_service_pb2_grpc as service_grpc
from rallypoint.wire.errors import unpack_detail
from support.core.served import Served, hello_of, served

JOB = JobId("job")
MONTH = Duration(seconds=30 * 86_400)
SQUATTER = job_pb2.JobSpec(min_nodes=2, max_nodes=2, join_timeout=MONTH)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:%5B::1%5D:4711", "::/64"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2:ffff::]:2", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:2", "fe80::/64"),
        ("ipv6:[::ffff:10.0.0.1]:4711", "10.0.0.1"),
        ("unix:/run/socket", "unix:/run/socket"),
        ("unknown", "unknown"),
    ],
)
def test_host_of_a_peer(peer: str, host: str) -> None:
    """An IPv4 address, or what an IPv6 host may not choose by itself."""
    assert host == host_of(peer)


def admit(
    peers: Peers,
    host: str,
    job_id: str,
    now_s: float,
    *,
    is_new: bool = True,
    runs: float = 0.0,
) -> None:
    """Let a session of a host come and go."""
    with peers.stream(host, now_s) as stream:
        peers.admit(stream, JobId(job_id), now_s, is_new=is_new, runs=runs)


def test_largest_job_behind_one_address_is_admitted_twice() -> None:
    """At once: its agents start, and find a new coordinator; and again a minute later."""
    peers = Peers()
    with ExitStack() as stack:
        for number in range(2 * NODES_PER_JOB_MAX):
            stream = stack.enter_context(peers.stream("nat", 0.0))
            peers.admit(stream, JOB, number / 1_000_000, is_new=True)
    with ExitStack() as stack:
        for _ in range(NODES_PER_JOB_MAX):
            stream = stack.enter_context(peers.stream("nat", 60.0))
            peers.admit(stream, JOB, 60.1, is_new=True)

        assert NODES_PER_JOB_MAX == peers._streams.total


def test_new_sessions_are_limited_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst, then a rate; sessions that reconnect, and other hosts, are not limited."""
    monkeypatch.setattr(limits, "SESSIONS_AT_ONCE_MAX", 3)
    monkeypatch.setattr(limits, "SESSIONS_PER_MINUTE_MAX", 6)
    peers = Peers()
    for _ in range(3):
        admit(peers, "a", "job", 100.0)
    with pytest.raises(LimitExceeded) as caught:
        admit(peers, "a", "job", 105.0)
    admit(peers, "a", "job", 105.0, is_new=False)
    admit(peers, "b", "job", 105.0)
    admit(peers, "a", "job", 110.1)
    with pytest.raises(LimitExceeded):
        admit(peers, "a", "job", 110.2)

    full = caught.value
    assert (Limit.SESSIONS_PER_HOST, 6, 5.0) == (full.limit, full.value, full.retry_s)


def test_refused_session_that_tries_again_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that wait for the end of an earlier run leave their host what it may open."""
    monkeypatch.setattr(limits, "SESSIONS_AT_ONCE_MAX", 1)
    peers = Peers()
    for _ in range(5):
        with peers.stream("a", 100.0) as stream:
            peers.admit(stream, JOB, 100.0, is_new=True)
            peers.refund(stream)
            peers.refund(stream)

    admit(peers, "a", "job", 100.0)
    with pytest.raises(LimitExceeded):
        admit(peers, "a", "job", 100.0)


async def test_agent_of_the_next_run_waits_without_using_up_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its Hello is refused until the run before has ended, and it asks again and again."""
    monkeypatch.setattr(limits, "SESSIONS_AT_ONCE_MAX", 1)
    refusal = Refusal(RefusalKind.PREVIOUS_RUN_ENDING, (("job_id", "job"), ("run", 1)))
    monkeypatch.setattr(sessions, "check_run", lambda *_: refusal)
    async with served() as server:
        for number in range(1, 4):
            agent = server.agent("job", number)
            await agent.hello()
            assert grpc.StatusCode.UNAVAILABLE is await agent.call.code()


def test_runs_that_a_host_opens_are_limited_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst, then a rate; other hosts, and agents that open none, are not limited."""
    monkeypatch.setattr(limits, "NEW_RUNS_AT_ONCE_MAX", 2)
    monkeypatch.setattr(limits, "NEW_RUNS_PER_MINUTE_MAX", 6)
    peers = Peers()
    for number in range(2):
        admit(peers, "a", f"{number}", 100.0, runs=1.0)
    with pytest.raises(LimitExceeded) as caught:
        admit(peers, "a", "2", 103.0, runs=1.0)
    admit(peers, "a", "2", 103.0)
    admit(peers, "b", "2", 103.0, runs=1.0)
    admit(peers, "a", "2", 110.1, runs=1.0)
    with pytest.raises(LimitExceeded):
        admit(peers, "a", "3", 110.2, runs=1.0)

    full = caught.value
    assert (Limit.NEW_RUNS_PER_HOST, 6, 7.0) == (full.limit, full.value, full.retry_s)
    assert isinstance(refusal_of(full), BrokenStream)


def test_largest_job_opens_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agents come before the coordinator knows it, and only the first one counts."""
    monkeypatch.setattr(limits, "NEW_RUNS_AT_ONCE_MAX", 1)
    peers = Peers()
    with ExitStack() as stack:
        for _ in range(NODES_PER_JOB_MAX):
            stream = stack.enter_context(peers.stream("nat", 0.0))
            peers.admit(stream, JOB, 0.0, is_new=True, runs=1.0)


def test_run_that_is_refused_for_now_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run before has not ended; or the host is in too many jobs."""
    monkeypatch.setattr(limits, "NEW_RUNS_AT_ONCE_MAX", 1)
    peers = Peers()
    for _ in range(3):
        with peers.stream("a", 100.0) as stream:
            peers.admit(stream, JOB, 100.0, is_new=True, runs=1.0)
            peers.refund(stream)
            peers.refund(stream)
    with monkeypatch.context() as none, pytest.raises(LimitExceeded):
        none.setattr(limits, "JOBS_PER_HOST_MAX", 0)
        admit(peers, "a", "job", 100.0, runs=1.0)

    admit(peers, "a", "job", 100.0, runs=1.0)
    with pytest.raises(LimitExceeded):
        admit(peers, "a", "other", 100.0, runs=1.0)


@pytest.fixture
def one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may open one run a minute."""
    monkeypatch.setattr(limits, "NEW_RUNS_AT_ONCE_MAX", 1)
    monkeypatch.setattr(limits, "NEW_RUNS_PER_MINUTE_MAX", 1)


@pytest.mark.parametrize(("size", "second"), [(0, "OK"), (2 * BYTES_PER_RUN, "RESOURCE_EXHAUSTED")])
async def test_long_texts_count_as_more_jobs(
    monkeypatch: pytest.MonkeyPatch, size: int, second: str
) -> None:
    """The journal keeps them."""
    monkeypatch.setattr(limits, "NEW_RUNS_AT_ONCE_MAX", 2)
    monkeypatch.setattr(limits, "NEW_RUNS_PER_MINUTE_MAX", 1)
    async with served() as server:
        for number, code in ((1, "OK"), (2, second)):
            agent = server.agent(f"job-{number}", number)
            labels = {str(key): "v" * 256 for key in range(size // 256)}
            await agent.hello(labels=labels)
            try:
                await agent.read()
                assert "OK" == code
            except grpc.aio.AioRpcError as error:
                assert code == error.code().name


@pytest.mark.usefixtures("one_run")
async def test_host_that_opens_one_job_after_the_other_waits() -> None:
    """Its next job is refused for now; nodes of its job, and what reconnects, are let in."""
    async with served() as server:
        spec = job_pb2.JobSpec(min_nodes=1, max_nodes=2)
        first, second = (server.agent("job", number) for number in (1, 2))
        await first.hello(spec=spec)
        await first.read()
        refused = server.agent("other", 3)
        await refused.hello()
        code, text = await refused.ending()
        detail = unpack_detail(tuple(await refused.call.trailing_metadata()))
        await second.hello(spec=spec)
        await second.read()
        again = first.again(server)
        await again.hello(spec=spec)
        await again.read()

    assert grpc.StatusCode.RESOURCE_EXHAUSTED is code
    assert "new jobs a minute from one host is reached; try again in" in text
    assert isinstance(detail, details_pb2.LimitReached)
    assert details_pb2.LIMIT_KIND_JOBS_PER_HOST == detail.kind
    assert detail.HasField("retry_after")


@pytest.mark.usefixtures("one_run")
async def test_next_run_of_a_job_counts_as_a_new_job() -> None:
    """A host that ends its run and opens the next one has to wait, too."""
    async with served() as server:
        first = await server.join("job", 1)
        await first.report(succeeded=agent_pb2.Succeeded(round=first.round))
        while not (await first.read()).desired.HasField("finished"):
            pass
        await first.report(goodbye=agent_pb2.Goodbye())
        await first.ending()
        late, next_ = server.agent("job", 2), server.agent("job", 3)
        await late.hello(run=1)  # it learns the outcome, and opens nothing
        finished = (await late.read()).welcome.desired
        await late.report(goodbye=agent_pb2.Goodbye())
        await late.ending()
        await next_.hello()
        code, text = await next_.ending()

    assert finished.HasField("finished")
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is code
    assert "new jobs" in text


@pytest.mark.usefixtures("one_run")
@pytest.mark.parametrize("window_ms", [0, 3_600_000])
async def test_jobs_that_find_a_new_coordinator_are_let_in(window_ms: int) -> None:
    """While it listens for rounds that run, and no longer."""
    async with served() as server:
        agent = server.agent("job", 1)
        await agent.hello()
        order = (await agent.read()).welcome.desired.run
    held = agent_pb2.HeldRound(order=order, state=node_pb2.NODE_STATE_STARTED)
    async with served(Timing(window_ms=window_ms)) as server:
        codes = []
        for number in (1, 2):
            agent = server.agent(f"job-{number}", number)
            hello = hello_of(agent.job_id, number)
            hello.ClearField("ready")
            hello.held.CopyFrom(held)
            await agent.write(agent_pb2.SessionRequest(hello=hello))
            try:
                await agent.read()
                codes.append(grpc.StatusCode.OK)
            except grpc.aio.AioRpcError as error:
                codes.append(error.code())

    second = grpc.StatusCode.OK if window_ms else grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [grpc.StatusCode.OK, second] == codes


def test_streams_are_limited_while_they_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of one makes room; the log names the host once a minute."""
    monkeypatch.setattr(limits, "STREAMS_PER_HOST_MAX", 2)
    peers = Peers()
    with capture_logs() as lines, ExitStack() as stack:
        stack.enter_context(peers.stream("a", 0.0))
        with peers.stream("a", 0.0):
            for _ in range(3):
                with pytest.raises(LimitExceeded), peers.stream("a", 1.0):
                    pass
            stack.enter_context(peers.stream("b", 0.0))
        with peers.stream("a", 0.0):
            with pytest.raises(LimitExceeded), peers.stream("a", 61.0):
                pass

    assert [("host_limited", "a")] * 2 == [(line["event"], line["host"]) for line in lines]


def test_host_takes_part_in_so_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """More nodes of these jobs, and other hosts, are admitted; an ended stream makes room."""
    monkeypatch.setattr(limits, "JOBS_PER_HOST_MAX", 2)
    peers = Peers()
    with ExitStack() as stack:
        for job_id in ("1", "2", "2"):
            stream = stack.enter_context(peers.stream("a", 0.0))
            peers.admit(stream, JobId(job_id), 0.0, is_new=True)
        with pytest.raises(LimitExceeded, match="2 jobs from one host"):
            admit(peers, "a", "3", 0.0)
        admit(peers, "b", "3", 0.0)
    admit(peers, "a", "3", 0.0)


def test_hosts_that_use_nothing_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of past hosts is bounded."""
    monkeypatch.setattr(limits, "HOSTS_MAX", 10)
    peers = Peers()
    with peers.stream("busy", 0.0):
        for number in range(100):
            admit(peers, f"host-{number}", "job", 0.0)

        assert 10 == len(peers._sessions._hosts) == len(peers._runs._hosts)
    assert 0 == peers._streams.total


def refusal_of(exceeded: LimitExceeded) -> Exception:
    """Return what a refusal means to an agent."""
    status = errors.limit_status(exceeded)
    metadata = (("grpc-status-details-bin", status.SerializeToString()),)
    return read_ending(grpc.StatusCode.RESOURCE_EXHAUSTED, status.message, metadata)


def test_agent_tries_again_when_there_may_be_room() -> None:
    """A limit that holds for a moment does not end it; one that stays does."""
    brief = refusal_of(LimitExceeded(Limit.STREAMS_PER_HOST, 7, 1.25))
    lasting = refusal_of(LimitExceeded(Limit.JOBS, 7))

    assert isinstance(brief, BrokenStream)
    assert "the limit of 7 streams from one host is reached; try again in 1.2 s" == str(brief)
    assert brief.retry_s == 1.25
    assert isinstance(lasting, Dismissed)


async def test_refused_stream_learns_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """RESOURCE_EXHAUSTED, with LimitReached and the time to wait."""
    monkeypatch.setattr(limits, "SESSIONS_AT_ONCE_MAX", 1)
    monkeypatch.setattr(limits, "SESSIONS_PER_MINUTE_MAX", 1)
    async with served() as server:
        agent = await server.join("job", 1)
        refused = server.agent("job", 2)
        await refused.hello()
        code, text = await refused.ending()
        trailing = await refused.call.trailing_metadata()
        await agent.check_alive()
        again = agent.again(server)  # a known session needs no room
        await again.hello()
        await again.read()

    detail = unpack_detail(tuple(trailing))
    assert isinstance(detail, details_pb2.LimitReached)
    assert ("new sessions a minute from one host", 1) == (detail.limit, detail.value)
    assert details_pb2.LIMIT_KIND_SESSIONS_PER_HOST == detail.kind
    assert 0 < detail.retry_after.ToSeconds() <= 60
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is code
    assert "the limit of 1 new sessions a minute from one host is reached" in text


async def squat(server: Served, number: int) -> str:
    """Open a job of two nodes, and vanish after the Welcome; return how that went."""
    agent = server.agent(f"squat-{number}", 1_000 + number)
    await agent.hello(spec=SQUATTER)
    try:
        await agent.read()
    except grpc.aio.AioRpcError as error:
        return str(error.details())
    agent.call.cancel()
    return "welcome"


async def test_squatters_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They fill the coordinator with jobs without nodes, and new jobs start all the same.

    Meanwhile a job that runs keeps its interval, its lease and its round.
    """
    monkeypatch.setattr(admission, "JOBS_MAX", 20)
    async with served(Timing(window_ms=0, reconnect_grace_ms=20)) as server:
        victim = await server.join("victim", 1)
        await victim.check_alive()
        ends = [await squat(server, number) for number in range(60)]
        await victim.check_alive()
        await asyncio.sleep(0.1)  # the grace of the last squatters
        newcomers = [await server.join(f"new-{number}", 10 + number) for number in range(5)]
        for agent in (victim, *newcomers):
            await agent.check_alive()
        stub = service_grpc.JobServiceStub(server.channel)
        jobs = (await stub.ListJobs(service_pb2.ListJobsRequest())).jobs

    assert {"welcome"} >= {end for end in ends if "20 jobs" not in end}
    assert len(jobs) <= 20
    shown = {job.job_id: job for job in jobs}
    assert job_pb2.JOB_PHASE_RUNNING == shown["victim"].phase
    assert {f"new-{number}" for number in range(5)} <= set(shown)
    assert (1, 1) == (shown["victim"].round, shown["victim"].node_count)
