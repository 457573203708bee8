"""The coordinator's intervals, and the ones that a job may choose: heartbeats and leases.

A job may request its own time between heartbeats, its own lease, or both; the coordinator's
values apply to the rest. Two rules make every pair of values safe, so no request is refused:

* At least three heartbeats fit into a lease, so one late heartbeat costs no node. A requested lease
is kept: heartbeats are sent as often as it needs. Any other lease grows with the heartbeats.
* All sessions together send at most 500 heartbeats a second: an agent sends at most one every
sessions / 500 seconds, whatever its job requests. When heartbeats get rarer, leases grow.
"""

from __future__ import annotations

from msgspec import Struct

from rallypoint.base.limits import BEATS_PER_LEASE
from rallypoint.server.core.model.spec import JobSpec


class Timing(Struct, frozen=True):
    """The coordinator's own intervals, in ms. The documented promises assume the defaults."""

    heartbeat_ms: int = 1_000
    """Shortest interval between heartbeats of a job that requests none."""
    heartbeats_per_s_max: int = 500
    """Heartbeats per second of all sessions together; beyond that the interval grows."""
    lease_ms: int = 5_000
    """Shortest lease of a job that requests none; 3 intervals if that is longer."""
    reconnect_grace_ms: int = 500
    """How long an agent may take to reconnect a broken stream. Longer than its first retries."""
    window_ms: int = 2_500
    """How long a coordinator without memory listens before it seals anything: longer than the
    longest pause (2 s) between an agent's attempts to connect."""
    start_due_ms: int = 30_000
    """Started is due this long after Run."""
    stop_slack_ms: int = 5_000
    """Ready is due this long after the shutdown timeout of a Stop."""

    def compute_heartbeat_ms(self, spec: JobSpec, sessions: int) -> int:
        """Return the interval between the heartbeats of an agent of the job.

        Args:
            spec: the job's specification.
            sessions: of all jobs together; 0 gives the shortest interval that the job can have.
        """
        interval_ms = spec.heartbeat_interval_ms or self.heartbeat_ms
        if spec.lease_ms:
            interval_ms = min(interval_ms, spec.lease_ms // BEATS_PER_LEASE)
        return max(interval_ms, sessions * 1000 // self.heartbeats_per_s_max)

    def compute_lease_ms(self, spec: JobSpec, sessions: int) -> int:
        """Return how long a silent session of the job counts as alive; arguments as above."""
        beats_ms = BEATS_PER_LEASE * self.compute_heartbeat_ms(spec, sessions)
        return max(spec.lease_ms or self.lease_ms, beats_ms)


NOTHING_ASKED = JobSpec()
"""A specification that requests neither heartbeats nor a lease."""
