"""The terms of a session: what the coordinator can do, and what ends a session or a round."""

from __future__ import annotations

from functools import lru_cache

from rallypoint.server.contract import limits
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.state.state import State
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.durations import to_duration

CAPABILITIES = frozenset({agent_pb2.CAPABILITY_NOTICES, agent_pb2.CAPABILITY_EVIDENCE})
"""What the coordinator can do beyond the protocol version."""
DEADLINES_SHARED_MAX = 64
"""Leases whose deadlines are kept."""


def deadlines_message(state: State, spec: JobSpec) -> agent_pb2.Deadlines:
    """Return what ends a session of a job, or a node's part in a round."""
    return _deadlines_message(state.timing, state.lease_ms(spec))


@lru_cache(maxsize=DEADLINES_SHARED_MAX)
def _deadlines_message(timing: Timing, lease_ms: int) -> agent_pb2.Deadlines:
    """Return the same. Copy the message; it is shared: every Welcome has it."""
    return agent_pb2.Deadlines(
        hello_within=to_duration(round(limits.HELLO_S_MAX * 1000)),
        started_within=to_duration(timing.start_due_ms),
        ready_slack=to_duration(timing.stop_slack_ms),
        reconnect_within=to_duration(timing.reconnect_grace_ms),
        lease=to_duration(lease_ms),
    )
