"""Planted bugs of relays: each replaces one function of the product, and a rule must notice it."""

from __future__ import annotations

from typing import Any

from rallypoint.relay import uplink
from rallypoint.relay.agent import Agent
from rallypoint.relay.uplink import Uplink
from rallypoint.server.agents.connections import Connection, Connections
from rallypoint.server.agents.relays.seats import Seat, Seats
from rallypoint.server.contract.errors import ended_status
from rallypoint.server.core.messages import inputs
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from sim.seeds.planting import Bug, Patch


def _take_a_lost_relay_for_lost_agents() -> list[Patch]:
    """Give the agents of a relay that is gone no more time than agents that are gone."""

    def remove_all(self: Seats) -> Any:
        ended = [self.remove(seat, is_relay=False) for seat in tuple(self._seats.values())]
        return [one for one in ended if one is not None]

    return [(Seats, "remove_all", remove_all)]


def _forget_to_wake_the_writer() -> list[Patch]:
    """Note that there is something to send, and let it wait for the next wake-up."""

    def note_due(self: Seats, number: int) -> None:
        self._due[number] = None

    return [(Seats, "note_due", note_due)]


def _forget_to_wake_the_uplink() -> list[Patch]:
    """Let what an agent says wait for the next sign of life."""

    def add(self: Uplink, entry: agent_pb2.RelayedRequest) -> None:
        self._outgoing.add(entry)

    return [(Uplink, "_add", add)]


def _refresh_the_leases_of_neighbours() -> list[Patch]:
    """Take a heartbeat of one agent for one of each agent of the relay."""
    real = Connections.note

    def note(
        self: Connections, connection: Connection, envelope: agent_pb2.SessionRequest
    ) -> inputs.Input | None:
        report = real(self, connection, envelope)
        if envelope.HasField("heartbeat"):
            for outbox in self._outboxes._by_session.values():
                sender = inputs.Sender(outbox.session, outbox.connection, envelope.epoch)
                self.coordinator.hear(inputs.Heartbeat(sender, 0))
        return report

    return [(Connections, "note", note)]


def _keep_the_end_of_an_agent_secret() -> list[Patch]:
    """Let an agent go without a word to the coordinator."""

    real = Uplink._add

    def add(self: Uplink, entry: agent_pb2.RelayedRequest) -> None:
        if not entry.HasField("closing"):
            real(self, entry)

    return [(Uplink, "_add", add)]


def _drop_the_ends_of_streams() -> list[Patch]:
    """Forget a stream that the coordinator has ended, and let the agent wait."""
    return [(uplink, "_to_end", lambda end: None)]


def _end_all_when_one_leaves() -> list[Patch]:
    """Let the Goodbye of one agent end the streams of its neighbours."""
    real = Seats.remove

    def remove(self: Seats, seat: Seat, *, is_relay: bool = False) -> Any:
        if seat.connection.outbox.has_left:
            for other in self._seats.values():
                other.connection.outbox.finish(ended_status())
        return real(self, seat, is_relay=is_relay)

    return [(Seats, "remove", remove)]


def _keep_the_agents_of_a_lost_coordinator() -> list[Patch]:
    """Leave the streams of agents open when that to the coordinator has ended."""

    def end(self: Uplink, problem: str) -> None:
        self.has_ended, self.problem = True, problem
        self.ready.set()
        self.gone.set()

    return [(Uplink, "_end", end)]


def _take_a_lost_agent_for_a_lost_relay() -> list[Patch]:
    """Give an agent that is gone the time of agents whose relay is gone."""
    real = Seats.remove

    def remove(self: Seats, seat: Seat, *, is_relay: bool = False) -> Any:
        return real(self, seat, is_relay=True)

    return [(Seats, "remove", remove)]


def _number_every_stream_alike() -> list[Patch]:
    """Use the number of a stream again."""
    real = Uplink.open

    def open(self: Uplink, agent: Agent) -> int:
        self._last = 0
        return real(self, agent)

    return [(Uplink, "open", open)]


BUGS: dict[str, Bug] = {
    "take a lost relay for lost agents": (
        _take_a_lost_relay_for_lost_agents,
        frozenset({"NobodyIsLost"}),
    ),
    "forget to wake the writer": (_forget_to_wake_the_writer, frozenset({"OutcomeIsPushed"})),
    "forget to wake the uplink": (_forget_to_wake_the_uplink, frozenset({"StartsTogether"})),
    "refresh the leases of neighbours": (
        _refresh_the_leases_of_neighbours,
        frozenset({"Liveness"}),
    ),
    "keep the end of an agent secret": (
        _keep_the_end_of_an_agent_secret,
        frozenset({"SeatsAreStreams"}),
    ),
    "drop the ends of streams": (_drop_the_ends_of_streams, frozenset({"SeatsAreStreams"})),
    "end all when one leaves": (_end_all_when_one_leaves, frozenset({"ConnectionsLast"})),
    "keep the agents of a lost coordinator": (
        _keep_the_agents_of_a_lost_coordinator,
        frozenset({"SeatsAreStreams"}),
    ),
    "take a lost agent for a lost relay": (
        _take_a_lost_agent_for_a_lost_relay,
        frozenset({"LossesArePushed"}),
    ),
    "number every stream alike": (_number_every_stream_alike, frozenset({"ConnectionsLast"})),
}
