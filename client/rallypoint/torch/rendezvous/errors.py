"""Which of torch's errors the end of a job means for a rendezvous."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import api

from rallypoint.agent.embedded.ended import Ended, EndKind
from rallypoint.agent.session.endings import NO_COORDINATOR
from rallypoint.v1 import job_pb2, verdict_pb2
from rallypoint.wire.coordinators import describe_start

_OUTCOMES = {
    job_pb2.OUTCOME_SUCCEEDED: "succeeded",
    job_pb2.OUTCOME_FAILED: "failed",
    job_pb2.OUTCOME_ABANDONED: "was abandoned",
    job_pb2.OUTCOME_CANCELLED: "was cancelled",
}


def to_error(ended: Ended, job_id: str, endpoint: str, why_absent: str) -> api.RendezvousError:
    """Return the error that a rendezvous raises after the end of its agent.

    Args:
        ended: how the job ended for this node.
        job_id: the job.
        endpoint: of the coordinator, or of several.
        why_absent: why the last attempt to reach it failed; empty: it did not.
    """
    match ended.kind:
        case EndKind.UNREACHABLE:
            why = f": {why_absent}" if why_absent else ""
            return api.RendezvousConnectionError(
                f"{ended.text} at {endpoint}{why}; check --rdzv-endpoint, "
                f"or {describe_start(endpoint)}"
            )
        case EndKind.REFUSED if ended.text.startswith(NO_COORDINATOR):
            return api.RendezvousConnectionError(f"{ended.text}; check --rdzv-endpoint")
        case EndKind.REFUSED | EndKind.FAILED:
            return api.RendezvousStateError(ended.text)
        case EndKind.RELEASED:
            return api.RendezvousGracefulExitError(f"this node left job {job_id}: {ended.text}")
        case EndKind.FINISHED:
            return _finished_error(ended, job_id)
        case EndKind.CLOSED:
            return api.RendezvousClosedError(ended.text)
        case EndKind.LEFT:
            return api.RendezvousClosedError(f"this node has left job {job_id}: {ended.text}")


def _finished_error(ended: Ended, job_id: str) -> api.RendezvousError:
    text = describe_outcome(ended, job_id)
    finished = ended.finished
    if ended.was_spare:
        return api.RendezvousGracefulExitError(f"{text}; this node was a spare")
    if finished and finished.verdict.cause == verdict_pb2.VERDICT_CAUSE_TOO_FEW_NODES:
        return api.RendezvousTimeoutError(text)
    return api.RendezvousClosedError(text)


def describe_outcome(ended: Ended, job_id: str) -> str:
    """Return how the job ended, as one line."""
    finished = ended.finished
    if finished is None:
        return f"job {job_id} has ended: {ended.text}"
    outcome = _OUTCOMES.get(finished.outcome, "has ended")
    why = f": {finished.verdict.text}" if finished.verdict.text else ""
    return f"job {job_id} {outcome}{why}"
