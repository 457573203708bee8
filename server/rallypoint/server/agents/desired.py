"""What a node should make true: its desired state, and the notices for its workers."""

from __future__ import annotations

from functools import lru_cache

from rallypoint.server.contract.mappers import FINISHED, HEADER, RUN, STANDBY, STOP
from rallypoint.server.contract.round import notice_message
from rallypoint.server.contract.verdict import verdict_message
from rallypoint.server.core.messages.effects import Notify, Send
from rallypoint.server.core.model.desired import (
    DesiredFinished,
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
)
from rallypoint.server.core.model.round import RoundHeader
from rallypoint.server.core.model.verdict import Consequence
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import round_pb2
from rallypoint.wire.durations import to_duration

SHARED_MAX = 64
"""Rounds whose messages are kept: one message goes to every member."""


def desired_message(send: Send, worker_token: str = "") -> agent_pb2.DesiredState:
    """Return the desired state of a node.

    Args:
        send: the desired state.
        worker_token: for the workers of a round that this coordinator has sealed.
    """
    message = agent_pb2.DesiredState(revision=send.revision)
    match send.desired:
        case DesiredRun(header=header, held_token=held_token) as run:
            header_message, token = _header_message(header), held_token or worker_token
            message.run.CopyFrom(RUN.to_message(run, header=header_message, worker_token=token))
        case DesiredStop() as stop:
            message.stop.CopyFrom(_stop_message(stop))
        case DesiredStandby() as standby:
            message.standby.CopyFrom(STANDBY.to_message(standby))
        case DesiredReleased(text=text):
            message.released.reason = agent_pb2.RELEASED_REASON_DRAINED
            message.released.text = text
        case DesiredFinished(verdict=verdict) as finished:
            message.finished.CopyFrom(FINISHED.to_message(finished))
            if verdict is not None:
                message.finished.verdict.CopyFrom(verdict_message(verdict, None))
                no_requeue = verdict.consequence is Consequence.NO_REQUEUE
                message.finished.no_requeue = no_requeue
    drain = send.desired.drain if isinstance(send.desired, DesiredRun | DesiredStop) else None
    if drain is not None:
        left = to_duration(send.drain_left_ms)
        message.drain.CopyFrom(agent_pb2.Drain(time_left=left, reason=drain.reason))
    return message


@lru_cache(maxsize=SHARED_MAX)
def _header_message(header: RoundHeader) -> round_pb2.RoundHeader:
    """Return what all members of a round share."""
    return HEADER.to_message(header)


@lru_cache(maxsize=SHARED_MAX)
def _stop_message(stop: DesiredStop) -> agent_pb2.Stop:
    return STOP.to_message(stop)


def notices_message(notify: Notify) -> agent_pb2.Notices:
    """Return all notices for a node, soonest first."""
    soonest_first = sorted(notify.notices, key=lambda pair: pair[1])
    return agent_pb2.Notices(
        notices=[notice_message(notice, left_ms) for notice, left_ms in soonest_first]
    )
