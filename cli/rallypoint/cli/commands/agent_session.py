"""The part of `node-agent` that needs gRPC: imported when the helper process is already running."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from google.protobuf.duration_pb2 import Duration

from rallypoint.agent.address import PortReserver, find_local_address, is_of_this_host
from rallypoint.agent.environ import Launch
from rallypoint.agent.leftovers import AGENT_MARK_ENV, compute_mark
from rallypoint.agent.process import WorkerHost
from rallypoint.agent.run import Agent, Listener, Settings, new_agent
from rallypoint.cli.flags import fail, how_given
from rallypoint.cli.logs import configure_logs
from rallypoint.cli.notes import Note
from rallypoint.cli.render import render_finished
from rallypoint.cli.resolution import Resolution
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration
from rallypoint.wire.log import get_logger

log = get_logger()


def run_session(args: argparse.Namespace, resolution: Resolution, host: WorkerHost) -> int:
    """Take part in the job until it ends; return the exit code."""
    configure_logs(args.log_level, args.log_format)
    _say(resolution.notes)
    for_workers = dict(os.environ)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write lines of its own
    return asyncio.run(_live(args, resolution, host, for_workers))


def _say(notes: Sequence[Note]) -> None:
    for note in notes:
        (log.warning if note.is_warning else log.info)(note.event, **note.fields)


async def _live(
    args: argparse.Namespace, resolution: Resolution, host: WorkerHost, for_workers: dict[str, str]
) -> int:
    async with _coordinator(resolution) as target:
        settings = _settings(args, resolution, target, for_workers)
        ports = _ports(args, resolution.master_port)
        agent = new_agent(settings, _listener(args), ports, _now_ms())
        exit_code = await agent.live(host)
        _say_goodbye(agent)
        return exit_code


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


def _settings(
    args: argparse.Namespace, resolution: Resolution, target: str, for_workers: dict[str, str]
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
        workers=args.nproc_per_node,
        role=args.role,
        node_name=args.node_name or socket.gethostname(),
        node_name_explicit=args.node_name is not None,
        node_rank=args.node_rank,
        address=address,
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
        heartbeat_interval=_asked(args.heartbeat_interval),
        lease=_asked(args.lease),
    )


def _asked(ms: int | None) -> Duration | None:
    """Return what the command line asks of the coordinator; None leaves it to that."""
    return None if ms is None else to_duration(ms)


def _listener(args: argparse.Namespace) -> Listener:
    program = os.path.basename(args.script)
    told: list[tuple[object, ...]] = []

    def finished(message: agent_pb2.Finished) -> None:
        text = render_finished(message, program)
        if text:
            print(text, file=sys.stderr, flush=True)

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


def _say_goodbye(agent: Agent) -> None:
    if agent.exit_code or agent.state.drain is not None:
        print(f"node-agent: {agent.exit_text}", file=sys.stderr, flush=True)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
