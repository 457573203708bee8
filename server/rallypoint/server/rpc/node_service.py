"""NodeService: requests of operators, answered when their changes are in the journal."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from rallypoint.server.coordinator import Coordinator, InputRefused
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State
from rallypoint.server.core.verdicts.health import find_health
from rallypoint.server.rpc.convert.checks import InvalidMessage
from rallypoint.server.rpc.convert.requests import (
    to_cordon,
    to_drain_node,
    to_node,
    to_page,
    to_uncordon,
)
from rallypoint.server.rpc.errors import refusal_status, unknown_job_status
from rallypoint.server.rpc.reading.pace import Pace
from rallypoint.server.rpc.reading.pages import NodePicture, show_nodes, take_nodes
from rallypoint.server.rpc.status import abort_with, invalid_status
from rallypoint.server.rpc.views.node import health_message, node_message
from rallypoint.v1 import node_pb2
from rallypoint.v1 import node_service_pb2 as service_pb2
from rallypoint.v1 import node_service_pb2_grpc as service_grpc
from rallypoint.wire.durations import to_duration


class NodeService(service_grpc.NodeServiceServicer):
    """Serves operators."""

    def __init__(self, coordinator: Coordinator, pace: Pace) -> None:
        """Pass requests to `coordinator`; all readers share `pace`."""
        self._coordinator = coordinator
        self._pace = pace

    async def GetNode(
        self,
        request: service_pb2.GetNodeRequest,
        context: grpc.aio.ServicerContext[service_pb2.GetNodeRequest, service_pb2.GetNodeResponse],
    ) -> service_pb2.GetNodeResponse:
        """Return one node."""

        def answer(state: State, now_ms: int) -> node_pb2.Node | Refusal:
            job = state.jobs.get(job_id)
            if job is None:
                return Refusal(RefusalKind.UNKNOWN_JOB, (("job_id", job_id),))
            session = state.index.get((job_id, name))
            if session is None:
                facts = (("job_id", job_id), ("node_name", name))
                return Refusal(RefusalKind.UNKNOWN_NODE, facts)
            return node_message(state, job, state.nodes[session], now_ms)

        try:
            job_id, name = to_node(request)
            found = await self._coordinator.read(answer)
        except InvalidMessage as error:
            await _abort(context, error)
        if isinstance(found, Refusal):
            await abort_with(context, refusal_status(found))
        return service_pb2.GetNodeResponse(node=found)

    async def ListNodes(
        self,
        request: service_pb2.ListNodesRequest,
        context: grpc.aio.ServicerContext[
            service_pb2.ListNodesRequest, service_pb2.ListNodesResponse
        ],
    ) -> service_pb2.ListNodesResponse:
        """Return a page of nodes."""

        def answer(state: State, now_ms: int) -> NodePicture | None:
            job = state.jobs.get(job_id)
            return None if job is None else take_nodes(state, job, token, now_ms)

        try:
            (size, token), job_id = to_page(request), JobId(request.job_id)
            picture = await self._coordinator.read(answer)
        except InvalidMessage as error:
            await _abort(context, error)
        if picture is None:
            await abort_with(context, unknown_job_status(request.job_id))
        return await show_nodes(picture, self._pace, size)

    async def DrainNode(
        self,
        request: service_pb2.DrainNodeRequest,
        context: grpc.aio.ServicerContext[
            service_pb2.DrainNodeRequest, service_pb2.DrainNodeResponse
        ],
    ) -> service_pb2.DrainNodeResponse:
        """Drain a node."""

        def answer(state: State, now_ms: int) -> int:
            job = state.jobs.get(change.job_id)
            requests = () if job is None else job.drain_requests
            ends_ms = (one.drain.until_ms for one in requests if one.name == change.name)
            return max(0, next(ends_ms, now_ms) - now_ms)  # the node may have left in the same turn

        try:
            change = to_drain_node(request)
            left_ms = await self._coordinator.ask(change, answer)
        except (InvalidMessage, InputRefused) as error:
            await _abort(context, error)
        return service_pb2.DrainNodeResponse(time_left=to_duration(left_ms))

    async def CordonNode(
        self,
        request: service_pb2.CordonNodeRequest,
        context: grpc.aio.ServicerContext[
            service_pb2.CordonNodeRequest, service_pb2.CordonNodeResponse
        ],
    ) -> service_pb2.CordonNodeResponse:
        """Cordon a node."""

        def answer(state: State, now_ms: int) -> service_pb2.CordonNodeResponse:
            job, name = state.jobs[change.job_id], change.name
            health = health_message(find_health(job.health, name), job.spec, now_ms)
            session = state.index.get((job.job_id, name))
            is_connected = session is not None and state.nodes[session].attached
            return service_pb2.CordonNodeResponse(health=health, connected=is_connected)

        try:
            change = to_cordon(request)
            return await self._coordinator.ask(change, answer)
        except (InvalidMessage, InputRefused) as error:
            await _abort(context, error)
        except LookupError:  # it was deleted in the same turn
            await abort_with(context, unknown_job_status(request.job_id))

    async def UncordonNode(
        self,
        request: service_pb2.UncordonNodeRequest,
        context: grpc.aio.ServicerContext[
            service_pb2.UncordonNodeRequest, service_pb2.UncordonNodeResponse
        ],
    ) -> service_pb2.UncordonNodeResponse:
        """Uncordon a node."""

        def answer(state: State, now_ms: int) -> service_pb2.UncordonNodeResponse:
            job = state.jobs[change.job_id]
            health = health_message(find_health(job.health, change.name), job.spec, now_ms)
            return service_pb2.UncordonNodeResponse(health=health)

        try:
            change = to_uncordon(request)
            return await self._coordinator.ask(change, answer)
        except (InvalidMessage, InputRefused) as error:
            await _abort(context, error)
        except LookupError:  # it was deleted in the same turn
            await abort_with(context, unknown_job_status(request.job_id))


async def _abort(
    context: grpc.aio.ServicerContext[Any, Any], error: InvalidMessage | InputRefused
) -> NoReturn:
    """End the call with the status of `error`."""
    if isinstance(error, InvalidMessage):
        await abort_with(context, invalid_status(error.path, error.problem))
    await abort_with(context, refusal_status(error.refusal))
