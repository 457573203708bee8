"""The part of `node-agent` that needs gRPC: imported when the helper process is already running."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from rallypoint.agent.address import find_local_address
from rallypoint.agent.console import Consoles, open_text
from rallypoint.agent.devices import WorkerCount
from rallypoint.agent.environ import Launch
from rallypoint.agent.leftovers import AGENT_MARK_ENV, compute_mark
from rallypoint.agent.placement import Placement
from rallypoint.agent.process import WorkerHost
from rallypoint.agent.run import Listener, Settings, new_agent
from rallypoint.cli.agent_flags import output
from rallypoint.cli.logs import configure_logs
from rallypoint.cli.render import render_finished
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration
from rallypoint.wire.log import get_logger

log = get_logger()

REPORT_LIMIT_S = 5.0
"""How long the agent waits for a slow console to take its report."""


def run_session(
    args: argparse.Namespace, job_id: str, placement: Placement, host: WorkerHost
) -> int:
    """Take part in the job until it ends; return the exit code."""
    consoles = Consoles.open()
    configure_logs(args.log_level, args.log_format, open_text(consoles.err))
    _tell_launch(args, placement.count)
    for_workers = dict(os.environ)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write lines of its own
    try:
        return asyncio.run(_live(args, job_id, placement, host, for_workers, consoles))
    finally:
        with suppress(KeyboardInterrupt):  # a second Ctrl-C means that nobody wants to read it
            consoles.err.flush(REPORT_LIMIT_S)


async def _live(
    args: argparse.Namespace,
    job_id: str,
    placement: Placement,
    host: WorkerHost,
    for_workers: dict[str, str],
    consoles: Consoles,
) -> int:
    # The report comes last, after what the workers wrote.
    reports: list[str] = []
    async with _coordinator(args) as target:
        settings = _settings(args, job_id, target, placement, for_workers)
        agent = new_agent(settings, _listener(args, reports), consoles, _now_ms())
        try:
            return await agent.live(host)
        finally:
            if agent.exit_code or agent.state.drain is not None:
                reports.append(f"node-agent: {agent.exit_text}")
            consoles.err.say("".join(f"{report}\n" for report in reports).encode())


@asynccontextmanager
async def _coordinator(args: argparse.Namespace) -> AsyncIterator[str]:
    """Yield the coordinator's address: the given one, or that of one in this process."""
    if not args.standalone:
        yield args.coordinator
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
    job_id: str,
    target: str,
    placement: Placement,
    for_workers: dict[str, str],
) -> Settings:
    incarnation = secrets.token_hex(16)
    address = args.local_addr
    if address is None:
        host = target.rpartition(":")[0].strip("[]")
        address = "127.0.0.1" if args.standalone else find_local_address(host)
    timeout_ms = args.coordinator_timeout
    return Settings(
        coordinator=target,
        job_id=job_id,
        spec=_spec(args),
        workers=placement.count.number,
        role=args.role,
        node_name=args.node_name or socket.gethostname(),
        node_name_explicit=args.node_name is not None,
        node_rank=args.node_rank,
        address=address,
        labels=dict(args.label),
        launch_id=args.launch_id or _slurm_launch_id(),
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
        incarnation=incarnation,
        environment={**for_workers, AGENT_MARK_ENV: compute_mark(incarnation)},
    )


def _slurm_launch_id() -> str:
    """Return Slurm's job, step and restart count, or nothing outside Slurm."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    job, step, restarts = (os.environ.get(name, "") for name in names)
    return f"slurm-{job}.{step or 0}.{restarts or 0}" if job else ""


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
    )


def _listener(args: argparse.Namespace, reports: list[str]) -> Listener:
    program = os.path.basename(args.script)
    told: list[tuple[object, ...]] = []

    def finished(message: agent_pb2.Finished) -> None:
        text = render_finished(message, program)
        if text:
            reports.append(text)

    def waiting(message: job_pb2.Waiting) -> None:
        """Log a wait when what it is for changes, not with every second of it."""
        key = (message.kind, message.ready_nodes, *(node.name for node in message.nodes))
        if told[-1:] != [key]:
            told[:] = [key]
            log.info("waiting", why=message.text)

    def disconnected(why: str, timeout_s: float) -> None:
        log.warning(
            "coordinator_away",
            why=why,
            then="workers go on; without any, the agent gives up after "
            f"{timeout_s:g} s (--coordinator-timeout)",
        )

    return Listener(finished, waiting, disconnected)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
