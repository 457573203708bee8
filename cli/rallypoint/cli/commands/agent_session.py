"""The part of `node-agent` that needs gRPC: imported when the helper process is already running."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rallypoint.agent.address import find_local_address
from rallypoint.agent.environ import Launch
from rallypoint.agent.leftovers import AGENT_MARK_ENV, compute_mark
from rallypoint.agent.process import WorkerHost
from rallypoint.agent.run import Settings, new_agent
from rallypoint.cli.commands.agent_reports import new_listener, new_reports
from rallypoint.cli.logs import configure_logs
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration


def run_session(args: argparse.Namespace, job_id: str, host: WorkerHost) -> int:
    """Take part in the job until it ends; return the exit code."""
    configure_logs(args.log_level, args.log_format)
    for_workers = dict(os.environ)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write lines of its own
    return asyncio.run(_live(args, job_id, host, for_workers))


async def _live(
    args: argparse.Namespace, job_id: str, host: WorkerHost, for_workers: dict[str, str]
) -> int:
    async with _coordinator(args) as target:
        settings = _settings(args, job_id, target, for_workers)
        reports = new_reports(args, settings)
        agent = new_agent(settings, new_listener(args, settings, reports), _now_ms())
        exit_code = await agent.live(host)
        reports.ended(exit_code, agent.exit_text, is_told=agent.state.drain is not None)
        return exit_code


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


def _settings(
    args: argparse.Namespace, job_id: str, target: str, for_workers: dict[str, str]
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
        workers=args.nproc_per_node,
        role=args.role,
        node_name=args.node_name or socket.gethostname(),
        node_name_explicit=args.node_name is not None,
        node_rank=args.node_rank,
        address=address,
        host_name=socket.gethostname(),
        labels=dict(args.label),
        launch_id=args.launch_id or _slurm_launch_id(),
        launch=Launch(args.script, tuple(args.args), args.module, args.no_python),
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


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
