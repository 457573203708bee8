"""NodeService: requests of operators, answered when their changes are in the journal."""

from __future__ import annotations

from rallypoint.server.api.jobs.rows import Rows, list_nodes
from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import Context, find_job, require
from rallypoint.server.contract.mappers import to_operation
from rallypoint.server.contract.node import health_message, node_message
from rallypoint.server.contract.pace import Pace
from rallypoint.server.contract.pages import fill_page, to_page
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.state.state import State
from rallypoint.server.core.verdicts.health import find_health
from rallypoint.server.shell.coordinator import Coordinator, InputRefused
from rallypoint.v1 import node_pb2
from rallypoint.v1 import node_service_pb2 as service_pb2
from rallypoint.v1 import node_service_pb2_grpc as service_grpc
from rallypoint.wire.durations import to_duration
from rallypoint.wire.mapping import Mapper

_NODE = {"name": "node_name"}
CORDON = Mapper(inputs.Cordon, service_pb2.CordonNodeRequest, _NODE)
UNCORDON = Mapper(inputs.Uncordon, service_pb2.UncordonNodeRequest, _NODE)
_DRAIN = Mapper(
    inputs.DrainNode, service_pb2.DrainNodeRequest, {**_NODE, "time_ms": "drain_timeout"}
)


class NodeService(service_grpc.NodeServiceServicer):
    """Serves operators."""

    def __init__(self, coordinator: Coordinator, pace: Pace) -> None:
        """Pass requests to `coordinator`; all readers share `pace`."""
        self._coordinator = coordinator
        self._pace = pace

    async def GetNode(
        self, request: service_pb2.GetNodeRequest, context: Context
    ) -> service_pb2.GetNodeResponse:
        """Return one node."""
        job_id, name = to_node(request)

        def answer(state: State, now_ms: int) -> node_pb2.Node:
            job = find_job(state, job_id)
            session = state.index.get((job_id, name))
            if session is None:
                facts = (("job_id", job_id), ("node_name", name))
                raise InputRefused(Refusal(RefusalKind.UNKNOWN_NODE, facts))
            return node_message(state, job, state.nodes[session], now_ms)

        return service_pb2.GetNodeResponse(node=await self._coordinator.read(answer))

    async def ListNodes(
        self, request: service_pb2.ListNodesRequest, context: Context
    ) -> service_pb2.ListNodesResponse:
        """Return a page of nodes."""
        (size, token), job_id = to_page(request), JobId(request.job_id)
        page = service_pb2.ListNodesResponse()

        def look(state: State, now_ms: int) -> Rows[node_pb2.Node]:
            page.node_count = len(state.sessions.get(job_id, ()))
            return list_nodes(state, find_job(state, job_id), token, now_ms)

        rows = await self._coordinator.read(look)
        page.next_page_token = await fill_page(self._pace, page.nodes, rows, size)
        return page

    async def DrainNode(
        self, request: service_pb2.DrainNodeRequest, context: Context
    ) -> service_pb2.DrainNodeResponse:
        """Drain a node."""
        change = to_drain_node(request)

        def answer(state: State, now_ms: int) -> int:
            job = state.jobs.get(change.job_id)
            requests = () if job is None else job.drain_requests
            ends_ms = (one.drain.until_ms for one in requests if one.name == change.name)
            return max(0, next(ends_ms, now_ms) - now_ms)  # the node may have left in the same turn

        left_ms = await self._coordinator.ask(change, answer)
        return service_pb2.DrainNodeResponse(time_left=to_duration(left_ms))

    async def CordonNode(
        self, request: service_pb2.CordonNodeRequest, context: Context
    ) -> service_pb2.CordonNodeResponse:
        """Cordon a node."""
        change = to_operation(request, CORDON)

        def answer(state: State, now_ms: int) -> service_pb2.CordonNodeResponse:
            job, name = find_job(state, change.job_id), change.name
            health = health_message(find_health(job.health, name), job.spec, now_ms)
            session = state.index.get((job.job_id, name))
            is_connected = session is not None and state.nodes[session].attached
            return service_pb2.CordonNodeResponse(health=health, connected=is_connected)

        return await self._coordinator.ask(change, answer)

    async def UncordonNode(
        self, request: service_pb2.UncordonNodeRequest, context: Context
    ) -> service_pb2.UncordonNodeResponse:
        """Uncordon a node."""
        change = to_operation(request, UNCORDON)

        def answer(state: State, now_ms: int) -> service_pb2.UncordonNodeResponse:
            job = find_job(state, change.job_id)
            health = health_message(find_health(job.health, change.name), job.spec, now_ms)
            return service_pb2.UncordonNodeResponse(health=health)

        return await self._coordinator.ask(change, answer)


def to_node(request: service_pb2.GetNodeRequest) -> tuple[JobId, NodeName]:
    """Return the node that a reader asks for, and its job."""
    check(request)
    return JobId(request.job_id), NodeName(request.node_name)


def to_drain_node(request: service_pb2.DrainNodeRequest) -> inputs.DrainNode:
    """Return the request to drain a node."""
    problem = (
        'is missing: write how long its workers may run, such as "600s"; "0s" stops them at once'
    )
    require(request.HasField("drain_timeout"), "drain_timeout", problem)
    return to_operation(request, _DRAIN)
