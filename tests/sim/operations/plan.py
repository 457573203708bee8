"""What simulated operators request, drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any

from google.protobuf.field_mask_pb2 import FieldMask

from rallypoint.server.api import nodes
from rallypoint.server.api.jobs import requests as convert
from rallypoint.server.contract.mappers import SPEC, to_operation
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import node_service_pb2 as nodes_pb2
from rallypoint.wire.durations import to_duration
from sim.seeds.scenario import DRAIN_MS_MAX, OTHER_RESTARTS, JobPlan

if TYPE_CHECKING:
    from sim.world.world import World


class Method(Enum):
    """What operators do."""

    CREATE = "create"
    CANCEL = "cancel"
    RESTART = "restart"
    UPDATE = "update"
    DELETE = "delete"
    DRAIN = "drain"
    CORDON = "cordon"
    UNCORDON = "uncordon"


CONVERT: dict[Method, Callable[[Any], Any]] = {
    Method.CREATE: lambda request: convert.to_create(request),
    Method.CANCEL: lambda request: to_operation(request, convert.CANCEL),
    Method.RESTART: lambda request: to_operation(request, convert.RESTART),
    Method.UPDATE: lambda request: convert.to_update(request),
    Method.DELETE: lambda request: to_operation(request, convert.DELETE),
    Method.DRAIN: lambda request: nodes.to_drain_node(request),
    Method.CORDON: lambda request: to_operation(request, nodes.CORDON),
    Method.UNCORDON: lambda request: to_operation(request, nodes.UNCORDON),
}
"""What the services do with a request. Looked up at each call, so that a planted bug counts."""
WEIGHTS = {
    Method.CREATE: 4,
    Method.CANCEL: 2,
    Method.RESTART: 6,
    Method.UPDATE: 6,
    Method.DELETE: 4,
    Method.DRAIN: 2,
    Method.CORDON: 1,
    Method.UNCORDON: 1,
}


def draw_request(rng: Random, world: World) -> tuple[Method, Any]:
    """Return what an operator requests next, without a request id."""
    method = rng.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
    job = rng.choice(world.jobs)
    server = world.server_of(job.job_id)
    known = None if server is None else server.state.jobs.get(job.job_id)
    round = 0 if known is None or rng.random() < 0.5 else known.round_number
    run = 0 if known is None or rng.random() < 0.5 else known.run
    match method:
        case Method.CREATE:
            return method, _create(rng, job)
        case Method.CANCEL:
            return method, jobs_pb2.CancelJobRequest(
                job_id=job.job_id, run=run, give_up_silent_nodes=run > 0
            )
        case Method.RESTART:
            request = jobs_pb2.RestartJobRequest(job_id=job.job_id, round=round, reason="new data")
            return method, request
        case Method.UPDATE:
            return method, _update(rng, world, job)
        case Method.DELETE:
            return method, jobs_pb2.DeleteJobRequest(job_id=job.job_id, run=run)
    name = _draw_name(rng, world, job)
    if method is Method.DRAIN:
        time = to_duration(rng.randint(0, DRAIN_MS_MAX))
        drain = nodes_pb2.DrainNodeRequest(job_id=job.job_id, node_name=name, drain_timeout=time)
        return method, drain
    kind = nodes_pb2.CordonNodeRequest if method is Method.CORDON else nodes_pb2.UncordonNodeRequest
    return method, kind(job_id=job.job_id, node_name=name)


def _create(rng: Random, job: JobPlan) -> jobs_pb2.CreateJobRequest:
    """Return a request for the specification of the job's agents, or for another one."""
    request = jobs_pb2.CreateJobRequest(job_id=job.job_id, spec=SPEC.to_message(job.spec))
    if rng.random() < 0.1:
        request.spec.max_restarts = OTHER_RESTARTS
    return request


def _update(rng: Random, world: World, job: JobPlan) -> jobs_pb2.UpdateJobRequest:
    update, nodes = jobs_pb2.JobUpdate(), len(job.nodes)
    if rng.random() < 0.5:
        update.min_nodes = rng.randint(1, nodes)
    if rng.random() < 0.6:
        update.max_nodes = rng.randint(update.min_nodes or 1, nodes + 1)
    if rng.random() < 0.3 or not update.ListFields():
        update.max_restarts = rng.randint(0, 6)
    request = jobs_pb2.UpdateJobRequest(job_id=job.job_id, update=update)
    names = [field.name for field, _ in update.ListFields()]
    if rng.random() < 0.5:
        request.update_mask.CopyFrom(FieldMask(paths=rng.sample(names, rng.randint(1, len(names)))))
    server = world.server_of(job.job_id)
    if rng.random() < 0.4 and server is not None:
        request.revision = server.state.revision_of(job.job_id)
    # Not drawn: the rest of the plan of every seed stays as it is.
    request.require_nodes = update.min_nodes % 2 == 1
    return request


def _draw_name(rng: Random, world: World, job: JobPlan) -> str:
    agents = [host.agent for host in world.hosts if host.plan.job_id == job.job_id]
    names = [str(agent.name) for agent in agents if agent is not None]
    return rng.choice([*names, job.nodes[0].name])
