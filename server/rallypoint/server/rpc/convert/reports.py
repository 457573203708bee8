"""Heartbeats and numbered reports of agents as inputs."""

from __future__ import annotations

from rallypoint.base.limits import TEXT_CHARS_MAX
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.rpc.convert.checks import (
    InvalidMessage,
    limit_text,
    require,
    to_limited_ms,
)
from rallypoint.server.rpc.convert.exits import to_exits
from rallypoint.v1 import agent_service_pb2 as agent_pb2

BLOCKED_PIDS_MAX = 64


def to_heartbeat(envelope: agent_pb2.SessionRequest) -> inputs.Heartbeat:
    """Return the input of a heartbeat."""
    sender = inputs.Sender(SessionId(envelope.session_id), envelope.connection, envelope.epoch)
    return inputs.Heartbeat(sender, envelope.heartbeat.number)


def to_report(envelope: agent_pb2.SessionRequest, local_world_size: int) -> inputs.Report | None:
    """Return the input of a numbered report, or None for a heartbeat.

    Args:
        envelope: any message after the first.
        local_world_size: number of workers of the node, which bounds local ranks.
    """
    kind = envelope.WhichOneof("message")
    if kind == "heartbeat":
        return None
    sender = inputs.Sender(
        SessionId(envelope.session_id), envelope.connection, envelope.epoch, envelope.sequence
    )
    require(envelope.sequence > 0, "sequence", "must be 1 or more for a report")
    match kind:
        case "ready":
            return inputs.Ready(sender, to_ready(envelope.ready, "ready"))
        case "draining":
            return inputs.Draining(sender, *to_drain(envelope.draining, "draining"))
        case "goodbye":
            return inputs.Goodbye(sender, limit_text(envelope.goodbye.text, TEXT_CHARS_MAX))
        case _:
            return _round_report(kind, envelope, sender, local_world_size)


def _round_report(
    kind: str | None,
    envelope: agent_pb2.SessionRequest,
    sender: inputs.Sender,
    local_world_size: int,
) -> inputs.Report:
    """Return the input of a report about the round that the node holds."""
    match kind:
        case "started":
            pids = tuple(envelope.started.pids)
            require(len(pids) == local_world_size, "started.pids", "must be one per worker")
            return inputs.Started(sender, envelope.started.round, pids)
        case "start_failed":
            text = limit_text(envelope.start_failed.text, TEXT_CHARS_MAX)
            return inputs.StartFailed(sender, envelope.start_failed.round, text)
        case "exited":
            exits = to_exits(envelope.exited.workers, "exited.workers", local_world_size)
            require(bool(exits), "exited.workers", "must not be empty")
            return inputs.Exited(sender, envelope.exited.round, exits)
        case "succeeded":
            return inputs.Succeeded(sender, envelope.succeeded.round)
        case "blocked":
            pids = tuple(envelope.blocked.pids[:BLOCKED_PIDS_MAX])
            return inputs.Blocked(sender, envelope.blocked.round, pids)
        case "leaving":
            text = limit_text(envelope.leaving.text, TEXT_CHARS_MAX)
            return inputs.Leaving(sender, envelope.leaving.round, text)
        case _:
            raise InvalidMessage("message", "is missing, unknown, or a second hello")


def to_ready(ready: agent_pb2.Ready, path: str) -> inputs.ReadyPort:
    """Return the report of a node that runs nothing."""
    require(0 < ready.master_port < 65_536, f"{path}.master_port", "must be 1 to 65535")
    return inputs.ReadyPort(ready.round, ready.master_port)


def to_drain(draining: agent_pb2.Draining, path: str) -> tuple[int, str]:
    """Return the time that a node has left, in ms, and why it leaves."""
    time_ms = to_limited_ms(draining.time_left, f"{path}.time_left")
    return time_ms, limit_text(draining.reason, TEXT_CHARS_MAX)
