"""A drain in the desired state: from the coordinator's core to the agent's."""

from __future__ import annotations

from rallypoint.agent.core.desired import DesiredDrain
from rallypoint.agent.session.translate import parse_desired
from rallypoint.server.core.messages.effects import Send
from rallypoint.server.core.model.desired import Desired, DesiredStandby, DesiredStop, Drain
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.rpc.views.desired import desired_message

SESSION = SessionId("a" * 32)
STOP = DesiredStop(1, RoundReason.DRAINED, 30_000, "b was drained")


def received(desired: Desired, left_ms: int = 0) -> DesiredDrain | None:
    """Return the drain that an agent reads from a desired state at 7 s of its clock."""
    message = desired_message(Send(SESSION, 3, desired, left_ms))
    found = parse_desired(1, message, 7_000)
    assert found is not None and (found.epoch, found.revision) == (1, 3)
    return found.drain


def test_drain_arrives_with_the_time_that_is_left() -> None:
    """The agent counts from its own clock; the reason is for people."""
    drain = Drain(until_ms=99_000, reason="maintenance")
    stop = DesiredStop(1, RoundReason.DRAINED, 30_000, "b was drained", drain)

    assert received(stop, 5_000) == DesiredDrain(12_000, "maintenance")
    assert received(stop, 0) == DesiredDrain(7_000, "maintenance")


def test_no_drain_is_absent() -> None:
    """A node that does not drain, or that runs nothing, has none."""
    assert received(STOP) is None
    assert received(DesiredStandby(spare=False)) is None
