"""Streams between agents and several coordinators: each agent finds the one that owns its job."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.session.dismissal import Dismissed
from rallypoint.agent.session.endings import BrokenStream, Misunderstood, Redirected
from rallypoint.wire.coordinators import Coordinators
from sim.rules.rules import Violation
from sim.world.link import Link
from sim.world.network import CONNECT_MS_MAX, Network, Stream
from sim.world.server import Server
from sim.world.wire import Hangup, ending_of

if TYPE_CHECKING:
    from sim.shards.fleet import Fleet
    from sim.shards.member import Member
    from sim.world.node import Agent


class FleetNetwork(Network):
    """Everything between the nodes and the hosts of the coordinators."""

    @property
    def fleet(self) -> Fleet:
        """Return the coordinators."""
        assert self.world.fleet is not None
        return self.world.fleet

    def connect(self, agent: Agent, connection: int) -> None:
        clock, link = self.world.clock, agent.link
        assert isinstance(link, FleetLink)
        failed = partial(link.unreachable, connection)
        member = self.fleet.members.get(link.coordinators.target)
        is_dark = member is None or (member.is_gone and member.is_dark)
        if agent.host.unreachable_until_ms > clock.now_ms or is_dark:
            clock.after(CONNECT_MS_MAX, partial(agent.take, failed))
        else:
            assert member is not None
            arrive = partial(self._arrive_at, agent, connection, member.address)
            clock.after(min(self.latency_ms(agent), CONNECT_MS_MAX - 1), arrive)

    def _arrive_at(self, agent: Agent, connection: int, address: str) -> None:
        member = self.fleet.members[address]
        failed = partial(agent.link.unreachable, connection)
        if member.is_gone:
            agent.take(failed)
        elif member.is_frozen:
            self.world.clock.after(CONNECT_MS_MAX, partial(agent.take, failed))
        else:
            life = self.fleet.shard_of(agent.host.plan.job_id) + 1
            stream = Stream(agent, connection, 0, life, member=member)
            self.streams.append(stream)
            agent.take(partial(agent.link.connected, stream))

    def _peer_of(self, stream: Stream, message: bytes | Hangup | None) -> Server | None:
        member: Member = stream.member
        if member.is_gone:
            return None
        if stream.server is None and isinstance(message, bytes):
            self._route(stream, member)
        return stream.server

    def _route(self, stream: Stream, member: Member) -> None:
        """Find the shard of an agent whose Hello has arrived, or end its stream."""
        shard = self.fleet.shard_of(stream.agent.host.plan.job_id)
        stream.server = member.find(shard)
        if stream.server is None:
            stream.server_done = True
            self.send_down(stream, Hangup(member.refer(shard).SerializeToString()))

    def _is_dark(self, stream: Stream) -> bool:
        member: Member = stream.member
        return stream.server_done or (member.is_gone and member.is_dark)

    def _awaits_peer(self, stream: Stream, again: partial[None]) -> bool:
        member: Member = stream.member
        if stream.server is not None or not member.is_frozen or member.is_gone:
            return False
        self.world.clock.at(member.frozen_until_ms, again)
        return True


class FleetLink(Link):
    """An agent's link that knows several coordinators, as `session/link.py` does."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        fleet = agent.world.fleet
        assert fleet is not None
        addresses = list(fleet.addresses)
        fleet.rng.shuffle(addresses)
        self.coordinators = Coordinators(addresses)

    def unreachable(self, connection: int) -> None:
        if connection == self.exchange.connection and self.stream is None:
            self._move_on(self.coordinators.failed())

    def _silent(self, stream: Stream | None) -> None:
        if stream is not None and stream is self.stream:
            self._drop()
            self._move_on(self.coordinators.failed())

    def _hear(self, stream: Stream, message: object) -> None:
        super()._hear(stream, message)  # type: ignore[arg-type]  # the same message
        if self.exchange.is_welcome:
            self.coordinators.welcomed()

    def ended(self, stream: Stream, hangup: Hangup) -> None:
        if stream is not self.stream:
            return
        was_welcome = self.exchange.is_welcome
        self._drop()
        if hangup.is_orderly and self.exchange.has_left:
            self.is_closed = True
            self.agent.post(agent_inputs.Disconnected())
            return
        ending = ending_of(hangup)
        match ending:
            case Misunderstood():
                raise Violation("Contract", f"{self.agent.host.name}: {ending}")
            case Dismissed():
                self.is_closed = True
                self.agent.on_dismissed(ending)
            case Redirected(address=address):
                self.world.coverage.counts["owners", "redirected"] += 1
                if self.coordinators.redirected(address):
                    self.attempt()  # the agent has learned where to go, and has lost nothing
                else:
                    self._move_on(False)
            case BrokenStream(retry_s=retry_s):
                moves = not was_welcome and self.coordinators.failed()
                self._move_on(moves and not retry_s)

    def _move_on(self, is_at_once: bool) -> None:
        if not is_at_once:
            self._again()
            return
        self.agent.post(agent_inputs.Disconnected())
        self.world.clock.after(0, partial(self.agent.take, self.attempt))
