"""The part of `node-agent` that needs gRPC. Import it after the helper process has started."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from typing import NoReturn

from rallypoint.agent.agent import Agent
from rallypoint.agent.containment import describe_error
from rallypoint.agent.core.leaving.signals import FORWARDED_ONLY
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.hosting.keeper import Keeper
from rallypoint.agent.launch.notes import log_notes
from rallypoint.agent.launch.plan import LaunchPlan
from rallypoint.agent.life import live
from rallypoint.agent.machine.address import is_of_this_host
from rallypoint.agent.machine.devices import WorkerCount
from rallypoint.agent.machine.ports import PortReserver
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.round.placement import Placement
from rallypoint.base.console import Consoles
from rallypoint.base.exit_codes import EXIT_SOFTWARE
from rallypoint.base.log import get_logger
from rallypoint.cli.commands.agent.resolution import Resolution, find_launch_id
from rallypoint.cli.flags.agent import output
from rallypoint.cli.flags.agent.job import read_options
from rallypoint.cli.flags.flag import Values
from rallypoint.cli.flags.parser import fail
from rallypoint.cli.report.reports import new_callbacks, new_reports
from rallypoint.embedded.built_in import NoCoordinator, reaching_coordinator
from rallypoint.wire.access import Access

log = get_logger()

REPORT_LIMIT_S = 5.0
"""How long the agent waits for a slow console to accept its report."""


def run_session(
    args: Values,
    resolution: Resolution,
    placement: Placement,
    host: WorkerHost,
    proof: Access,
    keeper: Keeper | None,
    consoles: Consoles,
) -> NoReturn:
    """Take part in the job until it ends; then exit.

    Exits without closing the event loop or finalizing the interpreter: that takes longer than
    stopping the workers, and a signal meanwhile would change the exit code.
    """
    log_notes(resolution.notes)
    _log_launch(args, placement.count)
    for_workers = dict(os.environ)
    runner = asyncio.Runner()
    try:
        live_here = _live(args, resolution, placement, host, proof, keeper, for_workers, consoles)
        exit_code = runner.run(live_here)
        # A second signal means that the user does not want to wait for the report.
        for one in set(args.signals_to_handle) - FORWARDED_ONLY:
            signal.signal(one, lambda *_: os._exit(exit_code))
    except NoCoordinator as error:
        fail(args.prog, str(error))
    except Exception as error:  # the root of the process: the helper kills the workers
        log.error("agent_failed", error=describe_error(error), then="it exits", exc_info=error)
        exit_code = EXIT_SOFTWARE
    finally:
        consoles.err.flush(REPORT_LIMIT_S)
    if keeper is not None:
        keeper.await_end()
    os._exit(exit_code)


async def _live(
    args: Values,
    resolution: Resolution,
    placement: Placement,
    host: WorkerHost,
    proof: Access,
    keeper: Keeper | None,
    for_workers: dict[str, str],
    consoles: Consoles,
) -> int:
    ports = _ports(args, resolution.master_port)
    async with reaching_coordinator(resolution.coordinator, proof) as (target, proof, failed):
        plan = _plan(args, resolution, placement, for_workers)
        settings = plan.settings(proof, target=target, keeper=keeper)
        reports = new_reports(args, settings, consoles.err)
        callbacks = new_callbacks(settings, reports)
        agent = Agent(settings, callbacks, ports, _now_ms())
        # What was imported stays: no collection has to look at it.
        gc.freeze()
        gc.enable()
        try:
            return await live(agent, host, consoles, failed)
        finally:
            if keeper is not None:
                keeper.is_over = reports.has_outcome
            always_print = agent.state.drain is not None
            reports.ended(
                agent.exit_code,
                agent.exit_text,
                always_print=always_print,
                is_refused=agent.is_dismissed,
            )


def _ports(args: Values, chosen: int) -> PortReserver:
    try:
        return PortReserver(chosen)
    except OSError as error:
        fail(args.prog, f"{args.source('master_port')}: {chosen}: {error.strerror}")


def _log_launch(args: Values, count: WorkerCount) -> None:
    """Log how many workers were counted, and which flag has no effect."""
    if count.of:
        why = {"why": "torch is not installed here"} if count.is_torch_missing else {}
        asked = args.nproc_per_node
        log.info("workers_counted", asked=asked, workers=count.number, of=count.of, **why)
    if args.start_method != "spawn":
        log.info("start_method_ignored", why="only workers that are Python functions have one")
    for flag in output.idle_filters(args):
        log.warning("filter_ignored", flag=flag, why="it selects lines of tee'd streams (--tee)")


def _plan(
    args: Values,
    resolution: Resolution,
    placement: Placement,
    for_workers: dict[str, str],
) -> LaunchPlan:
    address = resolution.address
    if address and not is_of_this_host(address):
        log.warning("foreign_address_used", address=address, why="not found on this host")
    low, high = args.nnodes
    return LaunchPlan(
        meeting=resolution,
        options=read_options(args),
        min_nodes=low,
        max_nodes=high,
        workers=placement.count.number,
        role=args.role,
        address=address,
        master_port=resolution.master_port,
        labels=dict(args.label),
        launch_id=args.launch_id or find_launch_id(os.environ, os.getpid()),
        launch=_launch(args, placement),
        may_differ=args.allow_different_programs,
        output=output.parse_spec(args),
        logs_plugin=output.parse_plugin(args, placement.count.number),
        drain_ms=args.drain_timeout,
        drain_signal=args.drain_signal,
        signals=args.signals_to_handle,
        signal_names=",".join(one.name for one in args.signals_to_handle),
        environment=for_workers,
    )


def _launch(args: Values, placement: Placement) -> Launch:
    return Launch(
        script=args.script,
        args=tuple(args.args),
        is_module=args.module,
        no_python=args.no_python,
        run_path=args.run_path,
        virtual_local_rank=args.virtual_local_rank,
        cpus=placement.cpus,
    )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
