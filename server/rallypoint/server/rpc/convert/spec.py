"""The specification of a run: fills in defaults, and refuses contradictions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rallypoint.base.limits import BEATS_PER_LEASE, FENCE_BEYOND_SHUTDOWN_MS
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.rpc.convert.checks import require
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_ms

_DEFAULT = JobSpec()
_TIMING = Timing()
SHARED_MAX = 256
"""Specifications that are kept: all agents of a job send the same one, thousands at once."""
SHARED_BYTES_MAX = 4_096
"""A larger one is read again each time. It has exit codes, or fields that are not known here."""


def to_spec(spec: job_pb2.JobSpec, path: str) -> JobSpec:
    """Return a specification with every default filled in; `path` leads to it in its message.

    Equal specifications are one value.
    """
    packed = spec.SerializeToString()
    return _read(spec, path) if len(packed) > SHARED_BYTES_MAX else _read_packed(packed, path)


@lru_cache(maxsize=SHARED_MAX)
def _read_packed(packed: bytes, path: str) -> JobSpec:
    return _read(job_pb2.JobSpec.FromString(packed), path)


def _read(spec: job_pb2.JobSpec, path: str) -> JobSpec:
    fits = spec.min_nodes <= spec.max_nodes
    require(fits, f"{path}.max_nodes", "must be at least min_nodes")
    taken = JobSpec(
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        max_restarts=spec.max_restarts,
        join_timeout_ms=_ms(spec, "join_timeout", _DEFAULT.join_timeout_ms),
        last_call_ms=_ms(spec, "last_call", _DEFAULT.last_call_ms),
        settle_ms=_ms(spec, "settle_time", _DEFAULT.settle_ms),
        grow_after_ms=_ms(spec, "grow_after", _DEFAULT.grow_after_ms),
        grow=spec.grow if spec.HasField("grow") else _DEFAULT.grow,
        shutdown_timeout_ms=_ms(spec, "shutdown_timeout", _DEFAULT.shutdown_timeout_ms),
        restart_backoff_ms=_ms(spec, "restart_backoff", _DEFAULT.restart_backoff_ms),
        fence_ms=_ms(spec, "fence_after", _DEFAULT.fence_ms),
        no_retry=_exit_codes(spec.no_retry_exit_codes),
        no_requeue=_exit_codes(spec.no_requeue_exit_codes),
        quarantine_after=_count(spec, "quarantine_after", _DEFAULT.quarantine_after),
        quarantine_window_ms=_ms(spec, "quarantine_window", _DEFAULT.quarantine_window_ms),
        quarantine_cooldown_ms=_ms(spec, "quarantine_cooldown", _DEFAULT.quarantine_cooldown_ms),
        max_reformations=_count(spec, "max_reformations", _DEFAULT.max_reformations),
        crash_loop=_count(spec, "crash_loop", _DEFAULT.crash_loop),
        progress_ms=_ms(spec, "progress_after", _DEFAULT.progress_ms),
        heartbeat_interval_ms=_ms(spec, "heartbeat_interval", 0),
        lease_ms=_ms(spec, "lease", 0),
    )
    _require_fence(taken, path)
    both = set(taken.no_retry) & set(taken.no_requeue)
    problem = f"{min(both, default=0)} is in no_retry_exit_codes too"
    require(not both, f"{path}.no_requeue_exit_codes", problem)
    return taken


def _require_fence(spec: JobSpec, path: str) -> None:
    """Refuse a fence that could stop the workers of a healthy node.

    Stopping takes the shutdown timeout, and before that the agent has to miss several heartbeats.
    """
    beats_ms = BEATS_PER_LEASE * _TIMING.compute_heartbeat_ms(spec, sessions=0)
    beyond_ms = max(FENCE_BEYOND_SHUTDOWN_MS, beats_ms)
    fits = spec.fence_ms == 0 or spec.fence_ms >= spec.shutdown_timeout_ms + beyond_ms
    problem = f"must be at least {beyond_ms / 1000:g} s longer than the shutdown timeout"
    require(fits, f"{path}.fence_after", problem)


def _exit_codes(codes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(set(codes)))


def _count(spec: job_pb2.JobSpec, name: str, default: int) -> int:
    return getattr(spec, name) if spec.HasField(name) else default  # type: ignore[arg-type]


def _ms(spec: job_pb2.JobSpec, name: str, default_ms: int) -> int:
    if not spec.HasField(name):  # type: ignore[arg-type]  # only fields of JobSpec are passed
        return default_ms
    return to_ms(getattr(spec, name))
