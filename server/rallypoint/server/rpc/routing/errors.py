"""How a call ends that no owner has answered."""

from __future__ import annotations

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.errors import pack_status

AGAIN_MS = 500
"""Pause before another attempt: a shard moves within seconds."""
_UNAVAILABLE: int = grpc.StatusCode.UNAVAILABLE.value[0]


def no_owner_status(shard: int) -> Status:
    """Return the status for a job that no coordinator serves at the moment."""
    return pack_status(
        _UNAVAILABLE,
        f"no coordinator owns shard {shard} at the moment: another one takes it within seconds",
        None,
        reason=details_pb2.REFUSAL_REASON_NO_OWNER,
        retry_ms=AGAIN_MS,
    )


def unserved_status(shard: int, trouble: str) -> Status:
    """Return the status for a job that this coordinator knows no owner of.

    Args:
        shard: of the job.
        trouble: why it has none; empty: it moves.
    """
    return store_status(trouble) if trouble else no_owner_status(shard)


def store_status(trouble: str) -> Status:
    """Return the status for a call that cannot be decided, because the store is out of reach."""
    return pack_status(
        _UNAVAILABLE,
        f"nothing can be decided at the moment: {trouble}",
        None,
        reason=details_pb2.REFUSAL_REASON_STORE_UNAVAILABLE,
        retry_ms=AGAIN_MS,
    )


def stood_still_status() -> Status:
    """Return the status for a call that may have waited in a process that stood still."""
    return pack_status(
        _UNAVAILABLE,
        "this coordinator stood still, so the call may be an old one: send it again",
        None,
        reason=details_pb2.REFUSAL_REASON_NO_OWNER,
        retry_ms=AGAIN_MS,
    )


def owner_lost_status(shard: int, address: str, trouble: str = "") -> Status:
    """Return the status for a call whose owner has not answered, or is the owner no more.

    Args:
        shard: that the call is about.
        address: of the owner.
        trouble: why there is no other owner, as far as is known.
    """
    return pack_status(
        _UNAVAILABLE,
        f"the owner of shard {shard}, the coordinator at {address}, has not answered"
        + (f"; {trouble}" if trouble else ""),
        None,
        reason=details_pb2.REFUSAL_REASON_OWNER_LOST,
        retry_ms=AGAIN_MS,
    )


def not_owner_status(address: str, coordinator_id: str, trouble: str = "") -> Status:
    """Return the status for an agent whose job another coordinator owns.

    Args:
        address: of the owner.
        coordinator_id: of the store.
        trouble: why that is not certain.
    """
    return pack_status(
        _UNAVAILABLE,
        f"the coordinator at {address} owns the job"
        + (f", as far as is known: {trouble}" if trouble else ""),
        details_pb2.NotOwner(address=address, coordinator_id=coordinator_id),
        reason=details_pb2.REFUSAL_REASON_NOT_OWNER,
        retry_ms=AGAIN_MS,
    )
