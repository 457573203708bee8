"""The coordinator's intervals, and the ones that a job may choose: heartbeats and leases.

A job may ask for its own time between heartbeats, its own lease, or both; the coordinator's hold
for what it does not ask for. Two rules make every pair of them safe, and nothing has to be refused:

* At least three heartbeats fit into a lease, so that one that is late kills nobody. A lease that
  was asked for holds: heartbeats come as often as it needs. One that was not grows with them.
* All sessions together send at most 500 heartbeats a second: nobody sends more often than every
  sessions / 500 seconds, whatever it asked for. Where that makes heartbeats rare, leases grow.
"""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.server.core.spec import JobSpec

BEATS_PER_LEASE = 3
HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX = 100, 300_000
"""What a job may ask for between heartbeats: 0.1 s to 5 minutes."""
LEASE_MS_MIN, LEASE_MS_MAX = 1_500, 3_600_000
"""What a job may ask for as a lease: 1.5 s to an hour. The coordinator may stand still for half a
second before it notices (its pulse and its tolerance), and a third of a lease may have passed since
the last heartbeat: what is left of a shorter one would not do for the way."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The coordinator's own intervals, in ms. The defaults are what the promises are made for."""

    heartbeat_ms: int = 1_000
    """Shortest interval between heartbeats of a job that asks for none."""
    heartbeats_per_s_max: int = 500
    """Beyond this many sessions per second the interval grows."""
    lease_ms: int = 5_000
    """Shortest lease of a job that asks for none; 3 intervals if that is longer."""
    reconnect_grace_ms: int = 500
    """How long a broken stream may take to come back. Longer than an agent's first retries."""
    window_ms: int = 2_500
    """How long a coordinator without memory listens before it seals anything: longer than the
    longest pause (2 s) between an agent's attempts to connect."""
    start_due_ms: int = 30_000
    """Started is due this long after Run."""
    stop_slack_ms: int = 5_000
    """Ready is due this long after the grace of a Stop has ended."""

    def compute_heartbeat_ms(self, spec: JobSpec, sessions: int) -> int:
        """Return the interval between the heartbeats of an agent of the job.

        Args:
            spec: what the job asked for.
            sessions: of all jobs together; 0 gives the shortest interval that the job can have.
        """
        asked_ms = spec.heartbeat_interval_ms or self.heartbeat_ms
        if spec.lease_ms:
            asked_ms = min(asked_ms, spec.lease_ms // BEATS_PER_LEASE)
        return max(asked_ms, sessions * 1000 // self.heartbeats_per_s_max)

    def compute_lease_ms(self, spec: JobSpec, sessions: int) -> int:
        """Return how long a silent session of the job counts as alive; arguments as above."""
        beats_ms = BEATS_PER_LEASE * self.compute_heartbeat_ms(spec, sessions)
        return max(spec.lease_ms or self.lease_ms, beats_ms)


NOTHING_ASKED = JobSpec()
"""A job that leaves its heartbeats and its lease to the coordinator."""
