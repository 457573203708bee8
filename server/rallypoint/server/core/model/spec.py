"""The specification of a run, and the intervals that follow from it: heartbeats and leases.

A job may request its own time between heartbeats, its own lease, or both; the coordinator's
values apply to the rest. Two rules make every pair of values safe, so no request is refused:

* At least three heartbeats fit into a lease, so one late heartbeat costs no node. A requested lease
is kept: heartbeats are sent as often as it needs. Any other lease grows with the heartbeats.
* All sessions together send at most 500 heartbeats a second: an agent sends at most one every
sessions / 500 seconds, whatever its job requests. When heartbeats get rarer, leases grow. The nodes
that its own job needs count from the beginning.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.base.limits import BEATS_PER_LEASE


class HangAction(Enum):
    """What follows when a round is suspected to hang."""

    REPORT = "report"
    RESTART = "restart"


class JobSpec(Struct, frozen=True):
    """The specification of a run; all its agents have the same one."""

    min_nodes: int = 1
    """1 or more."""
    max_nodes: int = 1
    """At least `min_nodes`."""
    max_restarts: int = 0
    """Charged restarts that the run may have; 0 or more."""
    join_timeout_ms: int = 600_000
    """How long a round may stay short of `min_nodes`."""
    last_call_ms: int = 5_000
    """How long a first round below `max_nodes` waits for more nodes; every arrival restarts the
    wait."""
    settle_time_ms: int = 5_000
    """How long newcomers are collected before a growth; every arrival restarts the wait."""
    grow_after_ms: int = 10_000
    """Youngest age at which a round is stopped for growth; doubles with every growth."""
    grow: bool = True
    """Whether a running round may be stopped to include newcomers."""
    shutdown_timeout_ms: int = 30_000
    """Between the stop signal and SIGKILL."""
    restart_backoff_ms: int = 1_000
    """Pause before the third restart in a row without progress; 0 turns pauses off."""
    fence_after_ms: int = 0
    """How long a node's processes may live after it was last heard; 0: rounds do not wait."""
    no_retry_exit_codes: tuple[int, ...] = ()
    """Exit codes of workers after which the run fails at once; sorted."""
    no_requeue_exit_codes: tuple[int, ...] = ()
    """Exit codes after which a scheduler must not start the run again either; sorted."""
    quarantine_after: int = 3
    """Failures within the window that keep a node out; 0 turns quarantine off."""
    quarantine_window_ms: int = 600_000
    quarantine_cooldown_ms: int = 300_000
    """Length of a first quarantine; doubles with every further one."""
    max_reformations: int = 10
    """Uncharged re-formations in a row without progress; 0 or more."""
    crash_loop: int = 5
    """The run ends when the same early death occurs this often in a row; 0 turns that off."""
    progress_after_ms: int = 300_000
    """A round that lived this long has made progress."""
    heartbeat_interval_ms: int = 0
    """Requested time between heartbeats; 0: the coordinator's. `Timing` has the rules."""
    lease_ms: int = 0
    """Requested lease: how long a silent node counts as alive; 0: the coordinator's."""
    hang_after_ms: int = 300_000
    """How long no worker may make progress until the round is suspected to hang; 0: never."""
    hang_first_after_ms: int = 1_800_000
    """The same before the first progress of a round."""
    hang_action: HangAction = HangAction.REPORT


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
    search_ms: int = 0
    """How much longer than a lease agents may take to return when they have to find the coordinator
    that has taken over; 0: it is where it was."""
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
