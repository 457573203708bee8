"""What a node brings into the job that a rendezvous handler names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.workers.environ import Launch
from rallypoint.elastic.node.plan import Plan

if TYPE_CHECKING:
    from rallypoint.agent.hosting.decision import Hosting
    from rallypoint.agent.launch.options import JobOptions
    from rallypoint.elastic.rendezvous.api import RendezvousParameters
    from rallypoint.elastic.values import WorkerSpec


class Meeting(Protocol):
    """What a rendezvous handler knows of its job."""

    params: RendezvousParameters
    options: JobOptions
    coordinator: str | None
    hosting: Hosting | None


def plan_node(handler: Meeting, spec: WorkerSpec | None = None) -> Plan:
    """Return what a node brings into a job, without what a launch of local workers needs.

    Args:
        handler: names the job.
        spec: the workers; None: the program itself is the only one.
    """
    params, is_alone = handler.params, handler.coordinator is None
    may_be_first = is_alone or handler.options.rank in (None, 0)
    port = (spec.master_port if spec is not None else None) or 0
    has_port = handler.hosting is not None and handler.hosting.port == port
    return Plan(
        coordinator=handler.coordinator,
        hosting=handler.hosting,
        job_id=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        options=replace(handler.options, max_restarts=0 if spec is None else spec.max_restarts),
        workers=1 if spec is None else spec.local_world_size,
        role="default" if spec is None else spec.role,
        local_addr=(None if spec is None else spec.local_addr) or params.local_addr,
        master_port=port if may_be_first and not has_port else 0,
        program="" if spec is None else spec.get_entrypoint_name(),
        launch=Launch("", (), limits_threads=False),
        output=OutputSpec(),
        environment=dict(os.environ),
        signals="",
    )
