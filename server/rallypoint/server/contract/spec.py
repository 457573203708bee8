"""The specification of a run: fills in defaults, and refuses contradictions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from msgspec.structs import replace

from rallypoint.base.limits import BEATS_PER_LEASE, FENCE_BEYOND_SHUTDOWN_MS
from rallypoint.server.contract.calls import require
from rallypoint.server.contract.mappers import SPEC
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.v1 import job_pb2

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
    taken = SPEC.to_struct(spec)
    no_retry = _exit_codes(taken.no_retry_exit_codes)
    no_requeue = _exit_codes(taken.no_requeue_exit_codes)
    taken = replace(taken, no_retry_exit_codes=no_retry, no_requeue_exit_codes=no_requeue)
    _require_fence(taken, path)
    both = set(no_retry) & set(no_requeue)
    problem = f"{min(both, default=0)} is in no_retry_exit_codes too"
    require(not both, f"{path}.no_requeue_exit_codes", problem)
    return taken


def _require_fence(spec: JobSpec, path: str) -> None:
    """Refuse a fence that could stop the workers of a healthy node.

    Stopping takes the shutdown timeout, and before that the agent has to miss several heartbeats.
    """
    beats_ms = BEATS_PER_LEASE * _TIMING.compute_heartbeat_ms(spec, sessions=0)
    beyond_ms = max(FENCE_BEYOND_SHUTDOWN_MS, beats_ms)
    fits = spec.fence_after_ms == 0 or spec.fence_after_ms >= spec.shutdown_timeout_ms + beyond_ms
    problem = f"must be at least {beyond_ms / 1000:g} s longer than the shutdown timeout"
    require(fits, f"{path}.fence_after", problem)


def _exit_codes(codes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(set(codes)))
