"""Which of torch's errors the end of a job means for a rendezvous."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import api

from rallypoint.embedded.ended import Ended, EndKind, describe_end, describe_outcome
from rallypoint.wire.coordinators import describe_start


def to_error(ended: Ended, job_id: str, endpoint: str, why_absent: str) -> api.RendezvousError:
    """Return the error that a rendezvous raises after the end of its agent.

    Args:
        ended: how the job ended for this node.
        job_id: the job.
        endpoint: of the coordinator, or of several.
        why_absent: why the last attempt to reach it failed; empty: it did not.
    """
    name, text = describe_end(ended, job_id)
    if ended.was_spare and ended.kind is EndKind.FINISHED:  # torch then ends with 0
        text = f"{describe_outcome(ended, job_id)}; this node was a spare"
        return api.RendezvousGracefulExitError(text)
    if ended.kind is EndKind.UNREACHABLE:
        why = f": {why_absent}" if why_absent else ""
        text += f" at {endpoint}{why}; check --rdzv-endpoint, or {describe_start(endpoint)}"
    elif name == "RendezvousConnectionError":
        text += "; check --rdzv-endpoint"
    error: api.RendezvousError = getattr(api, name)(text)
    return error
