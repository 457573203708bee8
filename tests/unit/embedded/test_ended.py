"""Which of torch's errors of a rendezvous the end of an agent is."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.agent.session.endings import NO_COORDINATOR
from rallypoint.embedded.ended import Ended, EndKind, describe_end
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, verdict_pb2

TOO_FEW = verdict_pb2.VERDICT_CAUSE_TOO_FEW_NODES


@pytest.mark.parametrize(
    ("kind", "text", "name", "shown"),
    [
        (EndKind.UNREACHABLE, "no answer", "ConnectionError", "no answer"),
        (EndKind.REFUSED, f"{NO_COORDINATOR} x", "ConnectionError", f"{NO_COORDINATOR} x"),
        (EndKind.REFUSED, "other --nnodes", "StateError", "other --nnodes"),
        (EndKind.FAILED, "a bug", "Error", "a bug"),
        (EndKind.RELEASED, "drained", "GracefulExitError", "this node left job j: drained"),
        (EndKind.LEFT, "done", "ClosedError", "this node has left job j: done"),
        (EndKind.CLOSED, "run 1 is ending", "ClosedError", "run 1 is ending"),
        (EndKind.FINISHED, "away", "ClosedError", "job j has ended: away"),
    ],
)
def test_end_without_an_outcome(kind: EndKind, text: str, name: str, shown: str) -> None:
    """The kind of the end decides."""
    ended = Ended(kind=kind, exit_code=1, text=text)

    assert (f"Rendezvous{name}", shown) == describe_end(ended, "j")


@pytest.mark.parametrize(
    ("outcome", "cause", "name", "shown"),
    [
        (job_pb2.OUTCOME_SUCCEEDED, 0, "GracefulExitError", "job j succeeded without this node"),
        (job_pb2.OUTCOME_FAILED, 0, "ClosedError", "job j failed: why"),
        (job_pb2.OUTCOME_FAILED, TOO_FEW, "TimeoutError", "job j failed: why"),
        (job_pb2.OUTCOME_CANCELLED, 0, "ClosedError", "job j was cancelled: why"),
    ],
)
def test_end_with_an_outcome(outcome: Any, cause: Any, name: str, shown: str) -> None:
    """A job that has succeeded did not need the node; too few nodes are a timeout."""
    text = "" if outcome == job_pb2.OUTCOME_SUCCEEDED else "why"
    verdict = verdict_pb2.Verdict(cause=cause, text=text)
    finished = agent_pb2.Finished(outcome=outcome, verdict=verdict)
    ended = Ended(kind=EndKind.FINISHED, exit_code=1, text="", finished=finished)

    assert (f"Rendezvous{name}", shown) == describe_end(ended, "j")
