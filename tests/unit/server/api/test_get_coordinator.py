"""CoordinatorService: what the coordinator says about itself is true."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from rallypoint.server.core.model.job import JOBS_MAX
from rallypoint.server.core.model.spec import Timing
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import coordinator_service_pb2_grpc as coordinator_grpc
from rallypoint.v1 import event_service_pb2, job_service_pb2
from rallypoint.v1 import event_service_pb2_grpc as events_grpc
from rallypoint.v1 import job_service_pb2_grpc as job_grpc
from rallypoint.wire.channel import MESSAGE_BYTES_MAX
from rallypoint.wire.durations import to_ms, to_unix_ms
from support.core.served import LIMIT_S, Served, served


async def coordinator_of(server: Served) -> coordinator_pb2.Coordinator:
    stub: Any = coordinator_grpc.CoordinatorServiceStub(server.channel)
    request = coordinator_pb2.GetCoordinatorRequest()
    answer = await stub.GetCoordinator(request, timeout=LIMIT_S)
    assert isinstance(answer, coordinator_pb2.GetCoordinatorResponse)
    return answer.coordinator


async def test_it_says_what_it_is() -> None:
    """Id and epoch are those of a Welcome, the version that of the package."""
    before_ms = time.time_ns() // 1_000_000
    async with served() as server:
        agent = server.agent("job", 1)
        await agent.hello()
        welcome = await agent.read()
        it = await coordinator_of(server)
        later = await coordinator_of(server)

    assert (welcome.welcome.coordinator_id, welcome.epoch) == (it.coordinator_id, it.epoch)
    assert (version("rallypoint"), False, False) == (it.version, it.durable, it.reattaching)
    capabilities = [agent_pb2.CAPABILITY_NOTICES, agent_pb2.CAPABILITY_EVIDENCE]
    assert (1, 1, capabilities) == (
        it.min_protocol_version,
        it.protocol_version,
        list(it.capabilities),
    )
    assert before_ms <= to_unix_ms(it.started_at) <= time.time_ns() // 1_000_000
    assert it.started_at == later.started_at
    assert 0 <= to_ms(it.uptime) <= to_ms(later.uptime)
    assert welcome.welcome.deadlines == it.deadlines
    assert welcome.welcome.heartbeat_interval == it.heartbeat_interval


async def test_it_counts() -> None:
    """Jobs, rounds, nodes, workers and watches, as they are now."""
    async with served() as server:
        empty = await coordinator_of(server)
        await server.join("one", 1)
        await server.join("two", 2)
        gone = await server.join("two-nodes", 3)
        gone.call.cancel()
        watch = job_grpc.JobServiceStub(server.channel).WatchJob(
            job_service_pb2.WatchJobRequest(job_id="one")
        )
        assert await watch.read() is not None
        watch_events = events_grpc.EventServiceStub(server.channel).WatchEvents(
            event_service_pb2.WatchEventsRequest()
        )
        assert await watch_events.read() is not None
        counts = (await coordinator_of(server)).counts
        while counts.connected_nodes == counts.nodes == 3:  # until the broken stream is noticed
            counts = (await coordinator_of(server)).counts
        full = await coordinator_of(server)
        watch.cancel()
        watch_events.cancel()

    assert coordinator_pb2.CoordinatorCounts() == empty.counts
    assert (3, 3, 2) == (counts.jobs, counts.open_jobs, counts.connected_nodes)
    assert (counts.rounds, counts.workers) in ((3, 3), (2, 2))  # until the lost round is settled
    assert 2 == counts.watches
    assert (
        counts.events == empty.counts.events + full.last_event_sequence - empty.last_event_sequence
    )
    assert 3 * 2 <= counts.events  # each job was opened, and each node joined
    assert empty.revision < full.revision


async def test_it_names_its_limits() -> None:
    """Those that callers can run into."""
    async with served() as server:
        limits = (await coordinator_of(server)).limits

    assert (JOBS_MAX, 16_384, 4_096) == (limits.jobs, limits.nodes_per_job, limits.workers_per_node)
    assert (256, 64) == (limits.watches_per_job, limits.watches_per_host)
    assert (512, 200_000) == (limits.events_per_job, limits.events)
    assert MESSAGE_BYTES_MAX == limits.message_bytes


async def test_it_says_that_it_waits_for_agents_of_older_rounds() -> None:
    """Only in the first seconds after its start."""
    async with served(Timing(window_ms=60_000)) as server:
        young = await coordinator_of(server)

    assert young.reattaching is True
