"""What waits to be sent to an agent."""

from __future__ import annotations

from rallypoint.server.core.messages.effects import (
    Acknowledge,
    Disconnect,
    Effect,
    Send,
    Welcome,
)
from rallypoint.server.core.model.desired import DesiredStandby
from rallypoint.server.core.model.ids import NodeName, SessionId
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.envelopes import Envelopes
from rallypoint.server.rpc.outbox import Outbox, Outboxes

SESSION = SessionId("0" * 32)


def carried(*effects: Effect) -> Outbox:
    """Return an agent's outbox after one turn with these effects."""
    outboxes = Outboxes()
    outbox = outboxes.open(SESSION, 1)
    outboxes.carry_out(effects, (), State("c", 1), 0)
    return outbox


def test_agent_that_has_left_gets_only_its_acknowledgement() -> None:
    """Its desired state would come with the acknowledgement on which it exits."""
    send, acknowledge = Send(SESSION, 1, DesiredStandby(spare=False)), Acknowledge(SESSION, 3)
    left = carried(send, acknowledge, Disconnect(SESSION, has_left=True))
    stayed = carried(send, acknowledge)

    assert (None, 3, True) == (left.desired, left.acknowledged, left.has_left)
    assert (send, 3, False) == (stayed.desired, stayed.acknowledged, stayed.has_left)
    assert left.end is None


def test_lost_session_ends_with_a_status() -> None:
    """It is not over: the agent may come back."""
    lost = carried(Disconnect(SESSION))

    assert lost.end is not None and not lost.has_left


def test_welcome_is_the_first_message_of_a_connection() -> None:
    """A turn before that of the Hello may send a desired state to the session: it waits."""
    state, outboxes = State("c", 1), Outboxes()
    envelopes, outbox = Envelopes(outboxes, state), outboxes.open(SESSION, 2)
    send = Send(SESSION, 1, DesiredStandby(spare=False))
    outboxes.carry_out((send,), (), state, 0)
    before = envelopes.take(outbox)
    outboxes.carry_out((Welcome(SESSION, 2, NodeName("n"), 1),), (), state, 0)
    (message,) = envelopes.take(outbox)

    assert before == []
    assert message.welcome.HasField("desired")
