"""Desired states."""

from __future__ import annotations

from functools import lru_cache

from rallypoint.server.core.messages.effects import Send
from rallypoint.server.core.model.desired import (
    Desired,
    DesiredFinished,
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
)
from rallypoint.server.core.model.verdict import Consequence
from rallypoint.server.rpc.views.enums import OUTCOMES, REASONS
from rallypoint.server.rpc.views.round import SHARED_MAX, assignment_message, header_message
from rallypoint.server.rpc.views.verdict import verdict_message
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.durations import to_duration


def desired_message(send: Send, worker_token: str = "") -> agent_pb2.DesiredState:
    """Return the desired state of a node.

    Args:
        send: the desired state.
        worker_token: for the workers of a round that this coordinator has sealed.
    """
    message = agent_pb2.DesiredState(revision=send.revision)
    _fill_desired(message, send.desired)
    if isinstance(send.desired, DesiredRun):
        message.run.worker_token = send.desired.held_token or worker_token
    drain = send.desired.drain if isinstance(send.desired, DesiredRun | DesiredStop) else None
    if drain is not None:
        left = to_duration(send.drain_left_ms)
        message.drain.CopyFrom(agent_pb2.Drain(time_left=left, reason=drain.reason))
    return message


def _fill_desired(message: agent_pb2.DesiredState, desired: Desired) -> None:
    match desired:
        case DesiredRun(header=header, assignment=assignment, max_restarts=max_restarts):
            message.run.header.CopyFrom(header_message(header))
            message.run.assignment.CopyFrom(assignment_message(assignment))
            message.run.max_restarts = max_restarts
            message.run.reached_at.extend(desired.reached_at)
        case DesiredStop():
            message.stop.CopyFrom(_stop_message(desired))
        case DesiredStandby(spare=spare):
            message.standby.CopyFrom(agent_pb2.Standby(spare=spare))
        case DesiredReleased(text=text):
            reason_drained = agent_pb2.RELEASED_REASON_DRAINED
            message.released.CopyFrom(agent_pb2.Released(reason=reason_drained, text=text))
        case DesiredFinished(outcome=outcome, verdict=verdict):
            message.finished.CopyFrom(
                agent_pb2.Finished(
                    outcome=OUTCOMES[outcome],
                    verdict=None if verdict is None else verdict_message(verdict, None),
                    restart_count=desired.restart_count,
                    round=desired.round,
                    no_requeue=verdict is not None
                    and verdict.consequence is Consequence.NO_REQUEUE,
                )
            )


@lru_cache(maxsize=SHARED_MAX)
def _stop_message(stop: DesiredStop) -> agent_pb2.Stop:
    return agent_pb2.Stop(
        round=stop.round,
        reason=REASONS[stop.reason],
        shutdown_timeout=to_duration(stop.shutdown_timeout_ms),
        text=stop.text,
    )
