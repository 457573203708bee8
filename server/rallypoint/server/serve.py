"""Starts a coordinator: its state, journal, shell and gRPC server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from msgspec import Struct

from rallypoint.base.log import get_logger
from rallypoint.server.beginning import begin
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.journal.interface import Journal
from rallypoint.server.journal.memory import MemoryJournal
from rallypoint.server.rpc.about.service import CoordinatorService
from rallypoint.server.rpc.agent_service import AgentService
from rallypoint.server.rpc.barriers.service import BarrierService
from rallypoint.server.rpc.events.service import EventService
from rallypoint.server.rpc.guards.resume import ResumeTokens
from rallypoint.server.rpc.guards.worker_tokens import WorkerTokens
from rallypoint.server.rpc.interceptor import Interceptor
from rallypoint.server.rpc.job_service import JobService
from rallypoint.server.rpc.keys.service import KeyValueService
from rallypoint.server.rpc.node_service import NodeService
from rallypoint.server.rpc.outbox import Outboxes
from rallypoint.server.rpc.reading.pace import Pace
from rallypoint.server.rpc.standard import Health, add_reflection
from rallypoint.server.rpc.workers.service import WorkerService
from rallypoint.v1 import agent_service_pb2_grpc as agent_grpc
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc
from rallypoint.v1 import coordinator_service_pb2_grpc as coordinator_grpc
from rallypoint.v1 import event_service_pb2_grpc as events_grpc
from rallypoint.v1 import job_service_pb2_grpc as job_grpc
from rallypoint.v1 import key_value_service_pb2_grpc as keys_grpc
from rallypoint.v1 import node_service_pb2_grpc as node_grpc
from rallypoint.v1 import worker_service_pb2_grpc as worker_grpc
from rallypoint.wire.channel import server_options

log = get_logger()

STOP_GRACE_S = 0.5
"""How long open calls may take to end when the coordinator stops."""
SERVICES = (
    "rallypoint.v1.AgentService",
    "rallypoint.v1.BarrierService",
    "rallypoint.v1.CoordinatorService",
    "rallypoint.v1.EventService",
    "rallypoint.v1.KeyValueService",
    "rallypoint.v1.JobService",
    "rallypoint.v1.NodeService",
    "rallypoint.v1.WorkerService",
)


class CannotListen(Exception):
    """The port is in use, or the address is not this host's."""


class Settings(Struct, frozen=True):
    """How a coordinator is started."""

    host: str
    """Address to listen on."""
    port: int
    """Port to listen on; 0: any free one."""
    timing: Timing
    standalone: bool = False
    """It serves only the agent in its own process, so no older round can be running."""
    journal: Journal | None = None
    """Open, and not loaded; the coordinator closes it at its end. None: one in memory."""


class Running(Struct):
    """A running coordinator."""

    port: int
    """The port it listens on."""
    failed: asyncio.Future[None]
    """Done, with its exception, when the coordinator cannot continue."""


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Running]:
    """Serve a coordinator while the context is open.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
        JournalFailed: when the journal cannot be read or written.
    """
    journal = settings.journal or MemoryJournal(os.urandom(16).hex())
    try:
        async with _serving(settings, journal) as running:
            yield running
    finally:
        await journal.close()


@asynccontextmanager
async def _serving(settings: Settings, journal: Journal) -> AsyncIterator[Running]:
    begun = await begin(journal, settings.timing, listens=not settings.standalone)
    state = begun.state
    outboxes = Outboxes()
    coordinator = Coordinator(
        state,
        journal,
        outboxes,
        begun.clock,
        announces=not settings.standalone,  # the agent in this process logs the same events
    )
    outboxes.epoch = state.epoch
    tokens = WorkerTokens(journal.identity, journal.secret)
    resume_tokens = ResumeTokens(journal.secret)
    server = grpc.aio.server(options=server_options(), interceptors=[Interceptor()])
    agent_grpc.add_AgentServiceServicer_to_server(
        AgentService(coordinator, outboxes, state, tokens, resume_tokens), server
    )
    pace = Pace()
    job_grpc.add_JobServiceServicer_to_server(JobService(coordinator, outboxes, pace), server)
    node_service = NodeService(coordinator, pace)
    node_grpc.add_NodeServiceServicer_to_server(node_service, server)
    events = EventService(coordinator, outboxes, pace)
    events_grpc.add_EventServiceServicer_to_server(events, server)
    barriers = BarrierService(coordinator, outboxes, tokens, pace)
    barrier_grpc.add_BarrierServiceServicer_to_server(barriers, server)
    keys = KeyValueService(coordinator, outboxes, tokens)
    keys_grpc.add_KeyValueServiceServicer_to_server(keys, server)
    about = CoordinatorService(coordinator, outboxes)
    coordinator_grpc.add_CoordinatorServiceServicer_to_server(about, server)
    worker_service = WorkerService(coordinator, tokens)
    worker_grpc.add_WorkerServiceServicer_to_server(worker_service, server)
    health = Health(server, SERVICES)
    add_reflection(server, SERVICES)
    port = _bind(server, settings)
    await server.start()
    await health.set_serving(True)
    running = Running(port, asyncio.get_running_loop().create_future())
    shell = asyncio.ensure_future(_run(coordinator, health, running))  # noqa: TID251  # owned by this context
    try:
        yield running
    finally:
        await health.set_serving(False)
        await server.stop(STOP_GRACE_S)
        shell.cancel()
        await asyncio.gather(shell, return_exceptions=True)


async def _run(coordinator: Coordinator, health: Health, running: Running) -> None:
    """Run the coordinator's loop; if it fails, report it at once."""
    try:
        await coordinator.run()
    except Exception as error:  # noqa: BLE001  # the root of the loop; the owner gets it
        if not running.failed.done():
            running.failed.set_exception(error)
            running.failed.exception()  # asyncio would report one that its owner does not ask for
        await health.set_serving(False)


def _bind(server: grpc.aio.Server, settings: Settings) -> int:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        port: int = server.add_insecure_port(f"{host}:{settings.port}")
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {host}:{settings.port}") from error
    return port
