"""CoordinatorService: what a coordinator is and can do, for operators."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import grpc
from msgspec import Struct

from rallypoint.base.limits import NODES_PER_JOB_MAX, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from rallypoint.server.access.protection import OPEN, Protection, describe
from rallypoint.server.contract import limits
from rallypoint.server.contract.terms import CAPABILITIES, deadlines_message
from rallypoint.server.core.model.events import EVENTS_MAX, EVENTS_PER_JOB_MAX
from rallypoint.server.core.model.job import JOBS_MAX, Job
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import NOTHING_ASKED
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import coordinator_service_pb2_grpc as coordinator_grpc
from rallypoint.wire.channel import MESSAGE_BYTES_MAX
from rallypoint.wire.durations import to_duration, to_timestamp
from rallypoint.wire.limits import find_rule

NS_PER_MS = 1_000_000


class Start(Struct, frozen=True):
    """When the coordinator started."""

    unix_ms: int
    """By the wall clock, for people."""
    monotonic_ms: int

    def uptime_ms(self) -> int:
        """Return how long it has been running."""
        return time.monotonic_ns() // NS_PER_MS - self.monotonic_ms


def start_now() -> Start:
    """Return the present as the start."""
    return Start(time.time_ns() // NS_PER_MS, time.monotonic_ns() // NS_PER_MS)


def coordinator_message(
    state: State, start: Start, watches: int, now_ms: int
) -> coordinator_pb2.Coordinator:
    """Return the coordinator.

    Args:
        state: its state, in a turn.
        start: when it started.
        watches: how many there are of jobs and events.
        now_ms: journal time.
    """
    return coordinator_pb2.Coordinator(
        coordinator_id=state.coordinator_id,
        durable=state.durable,
        version=_version(),
        epoch=state.epoch,
        started_at=to_timestamp(start.unix_ms),
        uptime=to_duration(start.uptime_ms()),
        reattaching=state.window_until_ms > now_ms,
        min_protocol_version=PROTOCOL_VERSION_MIN,
        protocol_version=PROTOCOL_VERSION,
        capabilities=sorted(CAPABILITIES),
        deadlines=deadlines_message(state, NOTHING_ASKED),
        heartbeat_interval=to_duration(state.heartbeat_ms(NOTHING_ASKED)),
        counts=_counts_message(state, watches),
        limits=_limits_message(),
        revision=state.revision,
        last_event_sequence=state.events.last,
    )


def _counts_message(state: State, watches: int) -> coordinator_pb2.CoordinatorCounts:
    rounds = [job for job in state.jobs.values() if job.phase in (Phase.RUNNING, Phase.STOPPING)]
    return coordinator_pb2.CoordinatorCounts(
        jobs=len(state.jobs),
        open_jobs=sum(job.phase is not Phase.CLOSED for job in state.jobs.values()),
        rounds=len(rounds),
        nodes=len(state.nodes),
        connected_nodes=sum(node.attached for node in state.nodes.values()),
        workers=sum(map(_count_workers, rounds)),
        watches=watches,
        events=state.events.count,
    )


def _count_workers(job: Job) -> int:
    return 0 if job.round is None else job.round.header.world_size


def _limits_message() -> coordinator_pb2.CoordinatorLimits:
    workers = find_rule(agent_pb2.Hello.DESCRIPTOR.fields_by_name["local_world_size"])
    assert workers is not None
    return coordinator_pb2.CoordinatorLimits(
        jobs=JOBS_MAX,
        nodes_per_job=NODES_PER_JOB_MAX,
        workers_per_node=workers.high,
        events_per_job=EVENTS_PER_JOB_MAX,
        events=EVENTS_MAX,
        watches_per_job=limits.WATCHERS_PER_JOB_MAX,
        watches_per_host=limits.WATCHERS_PER_HOST_MAX,
        message_bytes=MESSAGE_BYTES_MAX,
    )


@cache
def _version() -> str:
    # Imported here: no start has to wait for it.
    from importlib.metadata import version

    return version("rallypoint")


class CoordinatorService(coordinator_grpc.CoordinatorServiceServicer):
    """Serves operators."""

    def __init__(
        self,
        coordinator: Coordinator,
        count_watches: Callable[[], int],
        protection: Protection = OPEN,
    ) -> None:
        """Describe `coordinator`, which starts now, with the number of watches."""
        self._coordinator = coordinator
        self._count_watches = count_watches
        self._protection = protection
        self._start = start_now()

    async def GetCoordinator(
        self,
        request: coordinator_pb2.GetCoordinatorRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> coordinator_pb2.GetCoordinatorResponse:
        """Return the coordinator."""
        watches = self._count_watches()
        message = await self._coordinator.read(
            lambda state, now_ms: coordinator_message(state, self._start, watches, now_ms)
        )
        response = coordinator_pb2.GetCoordinatorResponse(coordinator=message)
        describe(response, self._protection)
        return response
