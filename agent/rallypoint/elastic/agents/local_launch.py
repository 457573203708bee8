"""What a local agent's options mean for the supervisor. Import it after the helper has started:
it imports gRPC.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.machine.numa import Binding
from rallypoint.agent.output.destinations import ALL, Choice, OutputSpec, Ranks, Streams
from rallypoint.agent.workers.environ import Launch
from rallypoint.agent.workers.placement import CannotPlace, check_visible_devices, find_placement
from rallypoint.base.log import get_logger
from rallypoint.elastic.logs.logs_specs import DefaultLogsSpecs, LogsSpecs
from rallypoint.elastic.logs.std import Std
from rallypoint.elastic.node.local_seat import LocalSeat
from rallypoint.elastic.node.logs_caller import new_caller_plugin
from rallypoint.elastic.node.plan import Plan
from rallypoint.elastic.values.worker_spec import WorkerSpec

log = get_logger()


def new_local_seat(
    plan: Plan,
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
    plan.check_preload(launch)
    output = OutputSpec(
        stdout_needles=_needles(spec.duplicate_stdout_filters),
        stderr_needles=_needles(spec.duplicate_stderr_filters),
        prefix_template=prefix_template or "",
    )
    plugin = None
    if type(logs_specs) is DefaultLogsSpecs:
        output = _with_choices(output, logs_specs)
    else:
        plugin = new_caller_plugin(logs_specs)
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


def _with_choices(output: OutputSpec, logs_specs: DefaultLogsSpecs) -> OutputSpec:
    log_dir, redirects, tee, shown = logs_specs.choices
    return replace(
        output,
        log_dir=os.path.abspath(log_dir) if log_dir else "",
        redirects=_choose(redirects),
        tee=_choose(tee),
        shown_local=tuple(Ranks(rank, rank) for rank in sorted(shown or ())),
    )


def _choose(streams: Std | dict[int, Std]) -> tuple[Choice, ...]:
    if isinstance(streams, dict):
        return tuple(Choice(Ranks(rank, rank), Streams(int(one))) for rank, one in streams.items())
    return (Choice(ALL, Streams(int(streams))),) if streams else ()


def _find_cpus(spec: WorkerSpec) -> tuple[tuple[int, ...], ...]:
    options = spec.numa_options
    if options is None:
        return ()
    try:
        binding = Binding(options.affinity_mode.value)
        return find_placement(spec.local_world_size, binding, os.environ).cpus
    except CannotPlace as error:
        if not options.should_fall_back_if_binding_fails:
            raise ValueError(str(error)) from None
        log.warning("binding_skipped", why=str(error))
        return ()
