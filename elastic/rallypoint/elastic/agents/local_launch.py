"""What a local agent's options mean for the supervisor. Import it after the helper has started:
it imports gRPC.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.launch.plan import LaunchPlan
from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.round.placement import CannotPlace, check_visible_devices, find_placement
from rallypoint.base.log import get_logger
from rallypoint.elastic.logs import DefaultLogsSpecs, LogsSpecs
from rallypoint.elastic.node.coordinated import check_preload
from rallypoint.elastic.node.local_seat import LocalSeat
from rallypoint.elastic.node.logs_caller import new_caller_plugin
from rallypoint.elastic.values import AffinityMode, WorkerSpec

log = get_logger()


def new_local_seat(
    plan: LaunchPlan,
    spec: WorkerSpec,
    launch: Launch,
    host: WorkerHost,
    logs_specs: LogsSpecs,
    prefix_template: str | None,
) -> LocalSeat:
    """Return the seat of a node whose workers a supervisor runs.

    Args:
        plan: what the node brings, without a launch.
        spec: the workers.
        launch: how each of them starts.
        host: the helper process.
        logs_specs: where their output goes.
        prefix_template: prefix of tee'd lines; None: role and local rank.

    Raises:
        ValueError: the machine cannot satisfy the specification.
    """
    check_preload(plan.options, launch)
    output = replace(
        logs_specs.output() if type(logs_specs) is DefaultLogsSpecs else OutputSpec(),
        stdout_needles=_needles(spec.duplicate_stdout_filters),
        stderr_needles=_needles(spec.duplicate_stderr_filters),
        prefix_template=prefix_template or "",
    )
    plugin = None if type(logs_specs) is DefaultLogsSpecs else new_caller_plugin(logs_specs)
    launch = replace(
        launch,
        virtual_local_rank=spec.virtual_local_rank,
        limits_threads=False,  # torchrun does that, but torch's Python API leaves it to the program
        cpus=_find_cpus(spec),
        master_addr=spec.master_addr or "",
    )
    if spec.virtual_local_rank:
        try:
            check_visible_devices(spec.local_world_size, os.environ)
        except CannotPlace as error:
            raise ValueError(str(error)) from None
    return LocalSeat(replace(plan, launch=launch, output=output), host, plugin)


def _needles(filters: list[str] | None) -> tuple[bytes, ...]:
    return tuple(os.fsencode(text) for text in filters or ())


def _find_cpus(spec: WorkerSpec) -> tuple[tuple[int, ...], ...]:
    options = spec.numa_options
    if options is None:
        return ()
    try:
        binding = AffinityMode(options.affinity_mode.value)  # torch's has the same values
        return find_placement(spec.local_world_size, binding, os.environ).cpus
    except CannotPlace as error:
        if not options.should_fall_back_if_binding_fails:
            raise ValueError(str(error)) from None
        log.warning("binding_skipped", why=str(error))
        return ()
