"""Events that are about to happen, for the workers."""

from __future__ import annotations

from rallypoint.server.core.messages.effects import Notify
from rallypoint.server.core.model.round import Notice
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration


def notice_message(notice: Notice, left_ms: int) -> job_pb2.Notice:
    """Return a notice; `left_ms` is the time until the event happens at the latest."""
    drains = notice.name is not None
    return job_pb2.Notice(
        kind=job_pb2.NOTICE_KIND_DRAIN if drains else job_pb2.NOTICE_KIND_GROWTH,
        time_left=to_duration(left_ms),
        node_name=notice.name or "",
        reason=notice.reason,
    )


def notices_message(notify: Notify) -> agent_pb2.Notices:
    """Return all notices for a node, soonest first."""
    soonest_first = sorted(notify.notices, key=lambda pair: pair[1])
    return agent_pb2.Notices(
        notices=[notice_message(notice, left_ms) for notice, left_ms in soonest_first]
    )
