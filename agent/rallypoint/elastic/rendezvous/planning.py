"""What a node brings into the job that a rendezvous handler names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rallypoint.agent.launch.plan import LaunchPlan

if TYPE_CHECKING:
    from rallypoint.agent.launch.options import JobOptions
    from rallypoint.agent.workers.environ import Launch
    from rallypoint.elastic.rendezvous.coordinated import CoordinatedRendezvous
    from rallypoint.elastic.values import WorkerSpec


def plan_node(handler: CoordinatedRendezvous, spec: WorkerSpec | None = None) -> LaunchPlan:
    """Return what a node brings into a job, without what a launch of local workers needs.

    Args:
        handler: names the job.
        spec: the workers; None: the program itself is the only one.
    """
    params, options, meeting = handler.params, handler.options, handler.meeting
    plan = LaunchPlan(
        meeting=meeting,
        options=options,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        address=params.local_addr,
        environment=dict(os.environ),
    )
    if spec is None:
        return plan
    is_alone = params.max_nodes == 1
    return replace(
        plan,
        options=replace(options, max_restarts=spec.max_restarts),
        workers=spec.local_world_size,
        role=spec.role,
        address=spec.local_addr or params.local_addr,
        master_port=meeting.find_master_port(
            spec.master_port or 0, options.rank, is_alone=is_alone
        ),
        title=spec.get_entrypoint_name(),
    )


def check_preload(options: JobOptions, launch: Launch | None) -> None:
    """Refuse to preload for workers that no process can fork.

    Args:
        options: of the job.
        launch: how each worker starts; None: the program starts them itself.

    Raises:
        ValueError: with what to do.
    """
    if options.preloaded() is None:
        return
    function = None if launch is None else launch.function
    if function is None:
        text = "preload: only functions can be forked here; for a script, use rallypoint agent"
        raise ValueError(text)
    if function.is_forked:
        text = 'preload: a forked worker is a copy, with its imports; use start_method="spawn"'
        raise ValueError(text)
