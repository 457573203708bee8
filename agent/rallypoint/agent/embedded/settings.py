"""The settings of an embedded agent whose workers another launcher runs."""

from __future__ import annotations

import os
import socket

from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.settings import Settings
from rallypoint.agent.workers.environ import Launch
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.access import PLAIN, Access


def foreign_settings(
    *,
    coordinator: str,
    job_id: str,
    spec: job_pb2.JobSpec,
    program: agent_pb2.Program,
    workers: int = 1,
    role: str = "default",
    node_name: str | None = None,
    address: str | None = None,
    shutdown_timeout_ms: int = 30_000,
    coordinator_timeout_ms: int = 60_000,
    outcome_timeout_ms: int = 30_000,
    access: Access = PLAIN,
) -> Settings:
    """Return settings with what such an agent needs; the rest is empty.

    Args:
        coordinator: host:port, or those of several with commas in between.
        job_id: the job's name.
        spec: the specification of its run.
        program: what the workers run, for readers of the job.
        workers: on this node.
        role: of the workers.
        node_name: None: the host name; the coordinator makes it unique.
        address: at which other nodes reach this one; None: found by the route to the coordinator.
        shutdown_timeout_ms: how long the launcher may take to stop its workers.
        coordinator_timeout_ms: how long a node without workers waits for a coordinator.
        outcome_timeout_ms: how long a node whose workers have succeeded waits for one.
        access: how the agent proves who it is.
    """
    return Settings(
        coordinator=coordinator,
        access=access,
        is_standalone=False,
        job_id=job_id,
        spec=spec,
        workers=workers,
        role=role,
        node_name=node_name or socket.gethostname(),
        node_name_explicit=node_name is not None,
        node_rank=None,
        address=address or "",
        host_name=socket.gethostname(),
        labels={},
        launch_id="",
        launch=Launch("", ()),
        program=program,
        output=OutputSpec(),
        logs_plugin=None,
        shutdown_timeout_ms=shutdown_timeout_ms,
        drain_ms=0,
        drain_signal=None,
        coordinator_timeout_ms=coordinator_timeout_ms,
        outcome_timeout_ms=outcome_timeout_ms,
        fence_ms=0,
        signals=(),
        incarnation=os.urandom(16).hex(),
        environment={},
    )
