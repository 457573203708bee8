"""What torch's callers expect to be raised."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from rallypoint.client import errors

NAMED_MAX = 16
"""Keys that an error names."""

StoreError: type[RuntimeError] = dist.DistStoreError
"""What a store raises; torch's own code looks for it."""
QueueEmptyError: type[RuntimeError] = getattr(dist, "QueueEmptyError", StoreError)
"""A queue is empty and the caller does not wait. Older versions of torch have no queues."""


def to_store_error(error: errors.RallypointError, job_id: str) -> RuntimeError:
    """Return what a store raises for a failed call."""
    text = str(error)
    match error:
        case errors.StaleRound(actual=actual, expected=expected) if actual == expected:
            text = f"this store belongs to round {actual} of job {job_id}, which has been stopped"
        case errors.StaleRound():
            text = (
                f"this store belongs to round {error.actual} of job {job_id}, which is over: "
                f"the current round is {error.expected}"
            )
        case errors.StaleRun():
            text = (
                f"this store belongs to run {error.actual} of job {job_id}, which is over: "
                f"the current run is {error.expected}"
            )
        case errors.ClientClosed():
            text = f"the store of job {job_id} cannot be used: {text}"
        case errors.Forgotten():
            text = f"the coordinator has lost the keys of job {job_id}: {text}"
    return StoreError(text)


def timeout_error(keys: tuple[str, ...], timeout: timedelta, has_lost_keys: bool) -> RuntimeError:
    """Return what a store raises when keys do not exist in time, in the words of torch.

    Args:
        keys: that do not exist.
        timeout: how long they were waited for.
        has_lost_keys: the coordinator has started again without its memory.
    """
    named = ", ".join(keys[:NAMED_MAX])
    more = f" and {len(keys) - NAMED_MAX} more" if len(keys) > NAMED_MAX else ""
    milliseconds = round(timedelta_s(timeout) * 1000)
    why = "; the coordinator has started again and lost all earlier keys" if has_lost_keys else ""
    return StoreError(f"wait timeout after {milliseconds}ms, keys: {named}{more}{why}")


def timedelta_s(timeout: timedelta) -> float:
    """Return seconds; a negative time is none."""
    return max(0.0, timeout.total_seconds())
