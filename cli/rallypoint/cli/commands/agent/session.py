"""The part of `node-agent` that needs gRPC: imported when the helper process is already running."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

from google.protobuf.duration_pb2 import Duration

from rallypoint.agent.address import PortReserver, find_local_address, is_of_this_host
from rallypoint.agent.core.signals import TELLING
from rallypoint.agent.devices import WorkerCount
from rallypoint.agent.environ import SIGNALS_ENV, Launch
from rallypoint.agent.leftovers import AGENT_MARK_ENV, compute_mark
from rallypoint.agent.output.console import Consoles, open_text
from rallypoint.agent.placement import Placement
from rallypoint.agent.process import WorkerHost
from rallypoint.agent.run import Settings, new_agent
from rallypoint.cli.agent_flags import output
from rallypoint.cli.commands.agent_reports import new_listener, new_reports
from rallypoint.cli.flags import fail, how_given
from rallypoint.cli.logs import configure_logs
from rallypoint.cli.notes import Note
from rallypoint.cli.resolution import Resolution, find_launch_id
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration
from rallypoint.wire.log import get_logger

log = get_logger()

REPORT_LIMIT_S = 5.0
"""How long the agent waits for a slow console to take its report."""


def run_session(
    args: argparse.Namespace, resolution: Resolution, placement: Placement, host: WorkerHost
) -> NoReturn:
    """Take part in the job until it ends; then exit.

    The event loop is not closed and the interpreter not taken apart: that takes longer than to end
    the workers, and a signal that came meanwhile would change the exit code.
    """
    consoles = Consoles.open()
    configure_logs(args.log_level, args.log_format, open_text(consoles.err))
    _say(resolution.notes)
    _tell_launch(args, placement.count)
    for_workers = dict(os.environ)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write lines of its own
    runner = asyncio.Runner()
    try:
        exit_code = runner.run(_live(args, resolution, placement, host, for_workers, consoles))
        for one in set(args.signals_to_handle) - TELLING:  # who sends another does not want to read
            signal.signal(one, lambda *_: os._exit(exit_code))
    finally:
        consoles.err.flush(REPORT_LIMIT_S)
    os._exit(exit_code)


def _say(notes: Sequence[Note]) -> None:
    for note in notes:
        (log.warning if note.is_warning else log.info)(note.event, **note.fields)


async def _live(
    args: argparse.Namespace,
    resolution: Resolution,
    placement: Placement,
    host: WorkerHost,
    for_workers: dict[str, str],
    consoles: Consoles,
) -> int:
    async with _coordinator(resolution) as target:
        settings = _settings(args, resolution, target, placement, for_workers)
        reports = new_reports(args, settings, consoles.err)
        listener = new_listener(args, settings, reports)
        ports = _ports(args, resolution.master_port)
        agent = new_agent(settings, listener, consoles, ports, _now_ms())
        try:
            return await agent.live(host)
        finally:
            is_told = agent.state.drain is not None
            reports.ended(agent.exit_code, agent.exit_text, is_told=is_told)


def _ports(args: argparse.Namespace, chosen: int) -> PortReserver:
    try:
        return PortReserver(chosen)
    except OSError as error:
        fail("node-agent", f"{how_given(args, 'master_port')}: {chosen}: {error.strerror}")


@asynccontextmanager
async def _coordinator(resolution: Resolution) -> AsyncIterator[str]:
    """Yield the coordinator's address: the given one, or that of one in this process."""
    if resolution.coordinator is not None:
        yield resolution.coordinator
        return
    from rallypoint.server.core.state import Timing
    from rallypoint.server.serve import Settings as ServerSettings
    from rallypoint.server.serve import serving

    server = ServerSettings("127.0.0.1", 0, Timing(), standalone=True)
    async with serving(server) as running:
        yield f"127.0.0.1:{running.port}"


def _tell_launch(args: argparse.Namespace, count: WorkerCount) -> None:
    """Log what was found out or is without meaning here."""
    if count.of:
        why = {"why": "torch is not installed here"} if count.is_torch_missing else {}
        asked = args.nproc_per_node
        log.info("workers_counted", asked=asked, workers=count.number, of=count.of, **why)
    if args.start_method != "spawn":
        log.info("start_method_unused", why="only functions have one; this is a command line")


def _settings(
    args: argparse.Namespace,
    resolution: Resolution,
    target: str,
    placement: Placement,
    for_workers: dict[str, str],
) -> Settings:
    incarnation = secrets.token_hex(16)
    address = resolution.address
    if address is None:
        address = find_local_address(target.rpartition(":")[0].strip("[]"))
    elif not is_of_this_host(address):
        log.warning("address_not_of_this_host", address=address, then="workers are given it")
    timeout_ms = args.coordinator_timeout
    return Settings(
        coordinator=target,
        job_id=resolution.job_id,
        spec=_spec(args),
        workers=placement.count.number,
        role=args.role,
        node_name=args.node_name or socket.gethostname(),
        node_name_explicit=args.node_name is not None,
        node_rank=args.node_rank,
        address=address,
        host_name=socket.gethostname(),
        labels=dict(args.label),
        launch_id=args.launch_id or find_launch_id(os.environ, os.getpid()),
        launch=Launch(
            script=args.script,
            args=tuple(args.args),
            is_module=args.module,
            no_python=args.no_python,
            run_path=args.run_path,
            virtual_local_rank=args.virtual_local_rank,
            cpus=placement.cpus,
        ),
        output=output.parse_spec(args),
        logs_plugin=output.parse_plugin(args, placement.count.number),
        grace_ms=args.shutdown_timeout,
        drain_ms=args.drain_timeout,
        drain_signal=args.drain_signal,
        coordinator_timeout_ms=args.join_timeout if timeout_ms is None else timeout_ms,
        fence_ms=args.fence_after,
        signals=args.signals_to_handle,
        incarnation=incarnation,
        environment={
            **for_workers,
            AGENT_MARK_ENV: compute_mark(incarnation),
            SIGNALS_ENV: ",".join(one.name for one in args.signals_to_handle),
        },
    )


def _spec(args: argparse.Namespace) -> job_pb2.JobSpec:
    low, high = args.nnodes
    return job_pb2.JobSpec(
        min_nodes=low,
        max_nodes=high,
        max_restarts=args.max_restarts,
        join_timeout=to_duration(args.join_timeout),
        last_call=to_duration(args.last_call),
        settle_time=to_duration(args.settle_time),
        grow_after=to_duration(args.grow_after),
        grow=not args.no_grow,
        grace=to_duration(args.shutdown_timeout),
        restart_backoff=to_duration(args.restart_backoff),
        fence_after=to_duration(args.fence_after) if args.fence_after else None,
        no_retry_exit_codes=args.no_retry_exit_codes,
        no_requeue_exit_codes=args.no_requeue_exit_codes,
        quarantine_after=args.quarantine_after,
        quarantine_window=to_duration(args.quarantine_window),
        quarantine_cooldown=to_duration(args.quarantine_cooldown),
        max_reformations=args.max_reformations,
        crash_loop=args.crash_loop,
        progress_after=to_duration(args.progress_after),
        heartbeat_interval=_asked(args.heartbeat_interval),
        lease=_asked(args.lease),
    )


def _asked(ms: int | None) -> Duration | None:
    """Return what the command line asks of the coordinator; None leaves it to that."""
    return None if ms is None else to_duration(ms)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
