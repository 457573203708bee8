"""Specifications."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from rallypoint.server.core.model.spec import JobSpec
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration


def spec_message(spec: JobSpec) -> job_pb2.JobSpec:
    """Return a specification with every default filled in."""
    return job_pb2.JobSpec(
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        max_restarts=spec.max_restarts,
        join_timeout=to_duration(spec.join_timeout_ms),
        last_call=to_duration(spec.last_call_ms),
        settle_time=to_duration(spec.settle_ms),
        grow_after=to_duration(spec.grow_after_ms),
        grow=spec.grow,
        shutdown_timeout=to_duration(spec.shutdown_timeout_ms),
        restart_backoff=to_duration(spec.restart_backoff_ms),
        fence_after=_chosen(spec.fence_ms),
        no_retry_exit_codes=spec.no_retry,
        no_requeue_exit_codes=spec.no_requeue,
        quarantine_after=spec.quarantine_after,
        quarantine_window=to_duration(spec.quarantine_window_ms),
        quarantine_cooldown=to_duration(spec.quarantine_cooldown_ms),
        max_reformations=spec.max_reformations,
        crash_loop=spec.crash_loop,
        progress_after=to_duration(spec.progress_ms),
        heartbeat_interval=_chosen(spec.heartbeat_interval_ms),
        lease=_chosen(spec.lease_ms),
    )


def _chosen(ms: int) -> Duration | None:
    """Return the job's choice; None if it left the choice to the coordinator."""
    return to_duration(ms) if ms else None
