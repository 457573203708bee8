"""What waits for the coordinator and for agents is bounded, and keeps its order."""

from __future__ import annotations

import grpc

from rallypoint.relay.agent import OK, UNREAD_MAX, Agent, unavailable
from rallypoint.relay.outgoing import (
    BYTES_MAX,
    ENTRIES_MAX,
    UNSENT_MAX,
    WAITING_BYTES_MAX,
    WAITING_MAX,
    Outgoing,
)
from rallypoint.v1 import agent_service_pb2 as agent_pb2


def said(stream: int, message: bytes = b"x") -> agent_pb2.RelayedRequest:
    return agent_pb2.RelayedRequest(stream=stream, message=message)


def test_everything_is_one_message() -> None:
    """What has arrived leaves together, in order; then there is nothing."""
    outgoing = Outgoing()
    for number in (2, 1, 2):
        outgoing.add(said(number))

    assert [2, 1, 2] == [entry.stream for entry in outgoing.take().entries]
    assert 0 == len(outgoing) == len(outgoing.take().entries)


def test_messages_are_bounded() -> None:
    """In entries and in bytes; one entry alone may be larger."""
    many, large = Outgoing(), Outgoing()
    for number in range(ENTRIES_MAX + 1):
        many.add(said(number + 1))
    for number in (1, 2, 3):
        large.add(said(number, bytes(BYTES_MAX - 100 if number < 3 else 2 * BYTES_MAX)))

    assert [ENTRIES_MAX, 1] == [len(many.take().entries) for _ in range(2)]
    assert [[1], [2], [3]] == [[one.stream for one in large.take().entries] for _ in range(3)]


def test_agent_has_little_room() -> None:
    """One that sends without end waits; the others do not."""
    outgoing = Outgoing()
    for _ in range(UNSENT_MAX):
        assert outgoing.has_room(1)
        outgoing.add(said(1))

    assert (False, True) == (outgoing.has_room(1), outgoing.has_room(2))
    outgoing.take()
    assert outgoing.has_room(1)


def test_no_agent_is_added_to_a_full_queue() -> None:
    """Of entries, such as of agents that connect again and again, or of bytes."""
    many, large = Outgoing(), Outgoing()
    for number in range(WAITING_MAX):
        assert not many.is_full
        many.add(said(number + 1))
    large.add(said(1, bytes(WAITING_BYTES_MAX)))

    assert (True, True) == (many.is_full, large.is_full)
    for outgoing in (many, large):
        outgoing.take()
    assert (False, False) == (many.is_full, large.is_full)


def test_agent_that_does_not_read_ends() -> None:
    """After a bounded number of messages."""
    agent = Agent(agent_pb2.RelayedOpening(hello=b"h"))
    for _ in range(UNREAD_MAX):
        agent.receive(b"m")
    assert (None, True) == (agent.end, agent.is_answered)
    agent.receive(b"m")

    assert agent.end is not None
    assert grpc.StatusCode.UNAVAILABLE is agent.end.code
    assert agent.take() is None


def test_first_end_counts() -> None:
    """A later one changes nothing."""
    agent = Agent(agent_pb2.RelayedOpening(hello=b"h"))
    agent.finish(OK)
    agent.finish(unavailable("late"))

    assert (OK, False) == (agent.end, agent.is_answered)
