"""What a run was asked to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a run was asked to be; the same for all of its agents."""

    min_nodes: int = 1
    """1 or more."""
    max_nodes: int = 1
    """At least `min_nodes`."""
    max_restarts: int = 0
    """Charged restarts that the run may have; 0 or more."""
    join_timeout_ms: int = 600_000
    """How long a round may stay short of `min_nodes`."""
    last_call_ms: int = 5_000
    """Wait for more nodes before a first round below `max_nodes`, anew with every arrival."""
    settle_ms: int = 5_000
    """Collecting time for newcomers before a growth, anew with every arrival."""
    grow_after_ms: int = 10_000
    """Youngest age at which a round is stopped for growth; doubles with every growth."""
    grow: bool = True
    """Whether a running round may be stopped to take newcomers in."""
    grace_ms: int = 30_000
    """Between the stop signal and SIGKILL."""
    restart_backoff_ms: int = 1_000
    """Pause before the third restart in a row without progress; 0 turns pauses off."""
    fence_ms: int = 0
    """How long after it was last heard a node's processes may live; 0: rounds do not wait."""
    no_retry: tuple[int, ...] = ()
    """Exit codes of workers after which the run fails at once; sorted."""
    no_requeue: tuple[int, ...] = ()
    """Exit codes after which nothing may start the run again either; sorted."""
    quarantine_after: int = 3
    """Failures within the window that set a node aside; 0 turns quarantine off."""
    quarantine_window_ms: int = 600_000
    quarantine_cooldown_ms: int = 300_000
    """Length of a first quarantine; doubles with every further one."""
    max_reformations: int = 10
    """Uncharged re-formations in a row without progress; 0 or more."""
    crash_loop: int = 5
    """The same early death this often in a row ends the run; 0 turns that off."""
    progress_ms: int = 300_000
    """A round that lived this long has made progress."""
    heartbeat_interval_ms: int = 0
    """Time between heartbeats that was asked for; 0: the coordinator's. `timing` has the rules."""
    lease_ms: int = 0
    """How long a silent node is to count as alive; 0: the coordinator's, the same."""
