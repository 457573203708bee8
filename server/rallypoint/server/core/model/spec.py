"""The specification of a run."""

from __future__ import annotations

from msgspec import Struct


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
    settle_ms: int = 5_000
    """How long newcomers are collected before a growth; every arrival restarts the wait."""
    grow_after_ms: int = 10_000
    """Youngest age at which a round is stopped for growth; doubles with every growth."""
    grow: bool = True
    """Whether a running round may be stopped to include newcomers."""
    shutdown_timeout_ms: int = 30_000
    """Between the stop signal and SIGKILL."""
    restart_backoff_ms: int = 1_000
    """Pause before the third restart in a row without progress; 0 turns pauses off."""
    fence_ms: int = 0
    """How long a node's processes may live after it was last heard; 0: rounds do not wait."""
    no_retry: tuple[int, ...] = ()
    """Exit codes of workers after which the run fails at once; sorted."""
    no_requeue: tuple[int, ...] = ()
    """Exit codes after which a scheduler must not start the run again either; sorted."""
    quarantine_after: int = 3
    """Failures within the window that set a node aside; 0 turns quarantine off."""
    quarantine_window_ms: int = 600_000
    quarantine_cooldown_ms: int = 300_000
    """Length of a first quarantine; doubles with every further one."""
    max_reformations: int = 10
    """Uncharged re-formations in a row without progress; 0 or more."""
    crash_loop: int = 5
    """The run ends when the same early death occurs this often in a row; 0 turns that off."""
    progress_ms: int = 300_000
    """A round that lived this long has made progress."""
    heartbeat_interval_ms: int = 0
    """Requested time between heartbeats; 0: the coordinator's. `timing` has the rules."""
    lease_ms: int = 0
    """Requested lease: how long a silent node counts as alive; 0: the coordinator's."""
