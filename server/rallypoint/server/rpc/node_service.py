"""NodeService: what an operator asks of nodes, answered after what it changed is durable."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from rallypoint.server.coordinator import Coordinator, InputRefused
from rallypoint.server.core import inputs
from rallypoint.server.core.health import find_health
from rallypoint.server.core.state import State
from rallypoint.server.rpc.convert import InvalidMessage, to_cordon, to_drain_node, to_uncordon
from rallypoint.server.rpc.errors import refusal_status
from rallypoint.server.rpc.status import abort_with, invalid_status
from rallypoint.server.rpc.views import health_message
from rallypoint.v1 import node_pb2
from rallypoint.v1 import node_service_pb2 as service_pb2
from rallypoint.v1 import node_service_pb2_grpc as service_grpc
from rallypoint.wire.durations import to_duration


class NodeService(service_grpc.NodeServiceServicer):
    """What an operator can ask."""

    def __init__(self, coordinator: Coordinator) -> None:
        """Bring requests to `coordinator`."""
        self._coordinator = coordinator

    async def DrainNode(
        self,
        request: service_pb2.DrainNodeRequest,
        context: grpc.aio.ServicerContext[
            service_pb2.DrainNodeRequest, service_pb2.DrainNodeResponse
        ],
    ) -> service_pb2.DrainNodeResponse:
        """Ask a node to leave."""

        def answer(state: State, now_ms: int) -> int:
            asked = next(one for one in state.jobs[said.job_id].asked if one.name == said.name)
            return max(0, asked.drain.until_ms - now_ms)

        try:
            said = to_drain_node(request)
            left_ms = await self._coordinator.ask(said, answer)
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
        """Set a node aside."""
        try:
            health = await self._change(to_cordon(request))
        except (InvalidMessage, InputRefused) as error:
            await _abort(context, error)
        return service_pb2.CordonNodeResponse(health=health)

    async def UncordonNode(
        self,
        request: service_pb2.UncordonNodeRequest,
        context: grpc.aio.ServicerContext[
            service_pb2.UncordonNodeRequest, service_pb2.UncordonNodeResponse
        ],
    ) -> service_pb2.UncordonNodeResponse:
        """Take a node back."""
        try:
            health = await self._change(to_uncordon(request))
        except (InvalidMessage, InputRefused) as error:
            await _abort(context, error)
        return service_pb2.UncordonNodeResponse(health=health)

    async def _change(self, said: inputs.Cordon | inputs.Uncordon) -> node_pb2.NodeHealth:
        """Return what the job knows of the node after the change.

        Raises:
            InputRefused: when there is no such job, or no room for another node.
        """

        def answer(state: State, now_ms: int) -> node_pb2.NodeHealth:
            job = state.jobs[said.job_id]
            return health_message(find_health(job.health, said.name), job.spec, now_ms)

        return await self._coordinator.ask(said, answer)


async def _abort(
    context: grpc.aio.ServicerContext[Any, Any], error: InvalidMessage | InputRefused
) -> NoReturn:
    """End the call with the status of what went wrong."""
    if isinstance(error, InvalidMessage):
        await abort_with(context, invalid_status(error.path, error.problem))
    await abort_with(context, refusal_status(error.refusal))
