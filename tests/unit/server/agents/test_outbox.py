"""What waits to be sent to an agent."""

from __future__ import annotations

import pytest

from rallypoint.server.agents.outbox import Outbox, Outboxes
from rallypoint.server.core.messages.effects import (
    Acknowledge,
    Disconnect,
    Effect,
    Refuse,
    Send,
    Welcome,
)
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.desired import DesiredStandby
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.listeners import Listeners

SESSION = SessionId("0" * 32)
JOB = JobId("job")


def carried(*effects: Effect) -> Outbox:
    """Return a welcomed agent's outbox after one turn with these effects."""
    outboxes, outbox = welcomed()
    Listeners(State("c", 1), outboxes).carry_out(effects, (), State("c", 1))
    return outbox


def welcomed() -> tuple[Outboxes, Outbox]:
    """Return the outboxes, and that of an agent whose Hello the core has answered."""
    outboxes = Outboxes()
    outbox = outboxes.open(SESSION, 1, JOB)
    welcome(outboxes, 1)
    return outboxes, outbox


def welcome(outboxes: Outboxes, connection: int) -> None:
    carry_out(outboxes, Welcome(SESSION, connection, NodeName("n1"), 1))


def refuse(outboxes: Outboxes, connection: int) -> None:
    carry_out(outboxes, Refuse(SESSION, connection, Refusal(RefusalKind.NOT_PROVEN)))


def carry_out(outboxes: Outboxes, effect: Effect) -> None:
    Listeners(State("c", 1), outboxes).carry_out((effect,), (), State("c", 1))


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


def test_connection_that_is_not_welcomed_replaces_none() -> None:
    """Until then the session's messages go to the connection that it has."""
    outboxes, first = welcomed()
    second = outboxes.open(SESSION, 2, JOB)
    send = Send(SESSION, 2, DesiredStandby(spare=False))
    carry_out(outboxes, send)

    assert (send, None, None) == (first.desired, second.desired, first.end)

    welcome(outboxes, 2)
    carry_out(outboxes, send)

    assert first.end is not None and second.desired is send


@pytest.mark.parametrize("is_closed", [False, True])
def test_refused_hello_leaves_the_session_alone(is_closed: bool) -> None:
    """Also when its stream has gone already."""
    outboxes, own = welcomed()
    thief = outboxes.open(SESSION, 2, JOB)
    if is_closed:
        outboxes.close(thief)
    refuse(outboxes, 2)

    assert own.end is None and not own.was_refused
    assert thief.end is not None and thief.was_refused


def test_connection_with_the_number_of_the_present_one_reaches_no_core() -> None:
    """An answer of the core to it could be meant for the present one."""
    outboxes, own = welcomed()
    thief = outboxes.open(SESSION, 1, JOB)

    assert own.end is None and thief.end is not None


def test_second_connection_with_a_number_waits_for_no_answer() -> None:
    """The answer of the core could be meant for either."""
    outboxes, own = welcomed()
    first, second = outboxes.open(SESSION, 2, JOB), outboxes.open(SESSION, 2, JOB)

    assert (None, None) == (own.end, first.end)
    assert second.end is not None


def test_connection_that_ended_before_its_welcome_replaces_the_older_one() -> None:
    """The core counts it as the session's; its end follows."""
    outboxes, older = welcomed()
    outboxes.close(outboxes.open(SESSION, 2, JOB))
    welcome(outboxes, 2)
    again = outboxes.open(SESSION, 3, JOB)
    welcome(outboxes, 3)

    assert older.end is not None
    assert (None, True) == (again.end, again.welcome is not None)
