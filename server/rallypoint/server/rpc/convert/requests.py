"""Requests of operators as inputs."""

from __future__ import annotations

from rallypoint.base.limits import TEXT_CHARS_MAX
from rallypoint.server.core.messages import inputs
from rallypoint.server.rpc.convert.checks import (
    limit_text,
    to_job_id,
    to_limited_ms,
    to_node_name,
)
from rallypoint.v1 import node_service_pb2


def to_drain_node(request: node_service_pb2.DrainNodeRequest) -> inputs.DrainNode:
    """Return the request to drain a node."""
    return inputs.DrainNode(
        to_job_id(request.job_id, "job_id"),
        to_node_name(request.node_name, "node_name"),
        to_limited_ms(request.drain_timeout, "drain_timeout"),
        limit_text(request.reason, TEXT_CHARS_MAX),
    )


def to_cordon(request: node_service_pb2.CordonNodeRequest) -> inputs.Cordon:
    """Return the request to cordon a node."""
    return inputs.Cordon(
        to_job_id(request.job_id, "job_id"),
        to_node_name(request.node_name, "node_name"),
        limit_text(request.reason, TEXT_CHARS_MAX),
    )


def to_uncordon(request: node_service_pb2.UncordonNodeRequest) -> inputs.Uncordon:
    """Return the request to uncordon a node."""
    return inputs.Uncordon(
        to_job_id(request.job_id, "job_id"), to_node_name(request.node_name, "node_name")
    )
