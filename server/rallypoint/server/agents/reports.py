"""Heartbeats and numbered reports of agents as inputs."""

from __future__ import annotations

from google.protobuf.unknown_fields import UnknownFieldSet

from rallypoint.server.agents.exits import AllowedExits, to_exits
from rallypoint.server.agents.held_round import to_milestones, to_still_ms
from rallypoint.server.contract.bounds import check
from rallypoint.server.contract.calls import InvalidMessage, require
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import SessionId
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.durations import to_ms

_GOODBYES = {
    agent_pb2.GOODBYE_REASON_FINISHED: "its run has ended",
    agent_pb2.GOODBYE_REASON_RELEASED: "the coordinator released it",
    agent_pb2.GOODBYE_REASON_SIGNAL: "its agent received a signal",
    agent_pb2.GOODBYE_REASON_ERROR: "its agent could not continue",
}
"""What an agent that sends no text wants to say."""


def require_sender(envelope: agent_pb2.SessionRequest, session: SessionId, connection: int) -> None:
    """Refuse a message that is not of the session and the connection of its stream.

    Raises:
        InvalidMessage: with the field that has changed.
    """
    problem = "must not change within a stream"
    require(envelope.session_id == session, "session_id", problem)
    require(envelope.connection == connection, "connection", problem)


def to_heartbeat(envelope: agent_pb2.SessionRequest) -> inputs.Heartbeat:
    """Return the input of a heartbeat that `to_report` has checked."""
    sender = inputs.Sender(SessionId(envelope.session_id), envelope.connection, envelope.epoch)
    return inputs.Heartbeat(sender, envelope.heartbeat.number)


def to_report(
    envelope: agent_pb2.SessionRequest, local_world_size: int, clock_ms: int
) -> inputs.Report | None:
    """Return the input of a numbered report, or None for what only shows that the agent is alive.

    A report that this version does not know is acknowledged and ignored: its agent is newer.

    Args:
        envelope: any message after the first; its facts are brought into their range.
        local_world_size: number of workers of the node, which bounds local ranks.
        clock_ms: the coordinator's clock, as Unix time; epochs are at most a day ahead of it.

    Raises:
        InvalidMessage: when it breaks the contract.
    """
    check(envelope, clock_ms)
    kind = envelope.WhichOneof("message")
    is_newer = kind is None and len(UnknownFieldSet(envelope)) > 0
    if kind == "heartbeat" or (is_newer and envelope.sequence == 0):
        return None
    require(kind is not None or is_newer, "message", "is missing")
    require(kind != "hello", "message", "is a second hello: open a new stream for it")
    require(envelope.sequence > 0, "sequence", "must be 1 or more for a report")
    sender = inputs.Sender(
        SessionId(envelope.session_id), envelope.connection, envelope.epoch, envelope.sequence
    )
    match kind:
        case "ready":
            return inputs.Ready(sender, to_ready(envelope.ready))
        case "draining":
            return inputs.Draining(sender, *to_drain(envelope.draining))
        case "goodbye":
            goodbye = envelope.goodbye
            return inputs.Goodbye(sender, goodbye.text or _GOODBYES.get(goodbye.reason, ""))
        case None:
            return inputs.NewerReport(sender)
        case _:
            return _round_report(kind, envelope, sender, local_world_size)


def _round_report(
    kind: str,
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
        case "reached":
            reached = envelope.reached
            return inputs.Reached(sender, reached.round, to_milestones(reached.milestones))
        case "progress":
            progress = envelope.progress
            return inputs.Progress(sender, progress.round, to_still_ms(progress))
        case "start_failed":
            failed = envelope.start_failed
            return inputs.StartFailed(sender, failed.round, failed.text, failed.is_permanent)
        case "exited":
            ended, path = envelope.exited.workers, "exited.workers"
            exits = to_exits(ended, path, local_world_size, AllowedExits.ENDED)
            require(bool(exits), path, "must not be empty")
            return inputs.Exited(sender, envelope.exited.round, exits)
        case "recorded":
            running, path = envelope.recorded.workers, "recorded.workers"
            exits = to_exits(running, path, local_world_size, AllowedExits.RUNNING)
            require(bool(exits), path, "must not be empty")
            return inputs.Recorded(sender, envelope.recorded.round, exits)
        case "succeeded":
            return inputs.Succeeded(sender, envelope.succeeded.round)
        case "blocked":
            blocked = envelope.blocked
            return inputs.Blocked(sender, blocked.round, tuple(blocked.pids), blocked.text)
        case "leaving":
            return inputs.Leaving(sender, envelope.leaving.round, envelope.leaving.text)
        case _:
            raise InvalidMessage("message", f"{kind} is not a report")


def to_ready(ready: agent_pb2.Ready) -> inputs.ReadyPort:
    """Return the report of a node that runs nothing."""
    return inputs.ReadyPort(ready.round, ready.master_port)


def to_drain(draining: agent_pb2.Draining) -> tuple[int, str]:
    """Return the time that a node has left, in ms, and why it leaves."""
    return to_ms(draining.time_left), draining.reason
