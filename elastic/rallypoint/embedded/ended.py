"""How the job ended for an embedded agent."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.agent.core.reports import GoodbyeKind
from rallypoint.agent.core.state import Ending
from rallypoint.agent.session.endings import NO_COORDINATOR
from rallypoint.agent.torchelastic.last_round import LastRound
from rallypoint.base.exit_codes import EXIT_UNREACHABLE
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, verdict_pb2


class EndKind(Enum):
    """Why an agent has ended."""

    FINISHED = "finished"  # the run has its outcome
    RELEASED = "released"  # the node was drained; the run continues without it
    REFUSED = "refused"  # the coordinator does not take this agent
    UNREACHABLE = "unreachable"  # no coordinator answered in time
    CLOSED = "closed"  # the run before was still ending, and this node waited long enough
    LEFT = "left"  # the program around the agent left the job
    FAILED = "failed"  # the agent could not continue


class Ended(Struct, frozen=True, kw_only=True):
    """How the job ended for this agent."""

    kind: EndKind
    exit_code: int
    """What node-agent would exit with."""
    text: str
    """Why, as one line; may be empty."""
    finished: agent_pb2.Finished | None = None
    """The outcome of the run, if the coordinator announced it."""
    last_round: LastRound | None = None
    """How the workers of the last round here ended; set with `finished`."""
    was_spare: bool = False
    """The last round of the run was one without this node."""


_OUTCOMES = {
    job_pb2.OUTCOME_SUCCEEDED: "succeeded",
    job_pb2.OUTCOME_FAILED: "failed",
    job_pb2.OUTCOME_ABANDONED: "was abandoned",
    job_pb2.OUTCOME_CANCELLED: "was cancelled",
}


def describe_end(ended: Ended, job_id: str) -> tuple[str, str]:
    """Return which of torch's errors of a rendezvous the end of an agent is: its name and text."""
    match ended.kind:
        case EndKind.UNREACHABLE:
            return "RendezvousConnectionError", ended.text
        case EndKind.REFUSED if ended.text.startswith(NO_COORDINATOR):
            return "RendezvousConnectionError", ended.text
        case EndKind.REFUSED:
            return "RendezvousStateError", ended.text
        case EndKind.FAILED:
            return "RendezvousError", ended.text or "the agent has failed"
        case EndKind.RELEASED:
            return "RendezvousGracefulExitError", f"this node left job {job_id}: {ended.text}"
        case EndKind.LEFT:
            return "RendezvousClosedError", f"this node has left job {job_id}: {ended.text}"
        case EndKind.CLOSED:
            return "RendezvousClosedError", ended.text
    finished, text = ended.finished, describe_outcome(ended, job_id)
    if finished is not None and finished.outcome == job_pb2.OUTCOME_SUCCEEDED:
        return "RendezvousGracefulExitError", f"{text} without this node"
    if finished is not None and finished.verdict.cause == verdict_pb2.VERDICT_CAUSE_TOO_FEW_NODES:
        return "RendezvousTimeoutError", text
    return "RendezvousClosedError", text


def describe_outcome(ended: Ended, job_id: str) -> str:
    """Return how the job ended, as one line."""
    finished = ended.finished
    if finished is None:
        return f"job {job_id} has ended: {ended.text}"
    outcome = _OUTCOMES.get(finished.outcome, "has ended")
    why = f": {finished.verdict.text}" if finished.verdict.text else ""
    return f"job {job_id} {outcome}{why}"


def find_kind(
    ending: Ending | None, *, has_left: bool, is_refused: bool, is_run_ending: bool
) -> EndKind:
    """Return why an agent has ended.

    Args:
        ending: what its core decided; None: it could not decide any more.
        has_left: the program around the agent asked to leave.
        is_refused: the coordinator has refused it.
        is_run_ending: the coordinator's last answer was that the run before has to end first.
    """
    if ending is None:
        return EndKind.FAILED
    if is_refused:
        return EndKind.REFUSED
    if ending.kind is GoodbyeKind.FINISHED:
        return EndKind.FINISHED
    if ending.kind is GoodbyeKind.DRAINED:
        return EndKind.RELEASED
    if ending.exit_code == EXIT_UNREACHABLE:
        return EndKind.CLOSED if is_run_ending else EndKind.UNREACHABLE
    return EndKind.LEFT if has_left else EndKind.FAILED
