"""What workers may rely on at barriers, judged by what they sent and what was sent to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.barrier import REMEMBERED_MS, BarrierKey, Ended
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.step import Transition
from rallypoint.v1 import scope_pb2
from sim.rules.rules import Checker
from support.core.decisions import Record, RoundSealed, RoundStopped, RunClosed

if TYPE_CHECKING:
    from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
    from sim.meetings.plan import Meeting
    from sim.world.server import Server
    from sim.world.world import World

_Place = tuple[int, BarrierKey, int]
"""A generation of a barrier in one life of the coordinator."""


class BarriersHold(Checker):
    """A barrier is released once, for all alike, with what each sent for it; or fails for all."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._begun: dict[bytes, Meeting] = {}
        """Every arrival that a worker has begun, by its payload."""
        self._ends: dict[_Place, Ended] = {}
        self._counted: dict[bytes, _Place] = {}
        """The generation that each arrival was counted at."""
        self._running: dict[tuple[int, JobId], int] = {}
        """The round that runs, by the journal of each life."""

    def began(self, payload: bytes, meeting: Meeting) -> None:
        """A worker calls."""
        self._begun[payload] = meeting

    def received(self, payload: bytes, answer: barrier_pb2.ArriveResponse) -> None:
        """A worker has received the release of its barrier."""
        senders, names = [_sender(one) for one in answer.payloads], _names(answer.participants)
        self.require(senders == names, f"the payloads of {senders} are named as those of {names}")
        self.require(payload in answer.payloads, f"{payload!r} is not in the answer")

    def recorded(self, server: Server, record: Record) -> None:
        if isinstance(record, RoundSealed):
            self._running[server.life, record.job_id] = record.header.number
        elif isinstance(record, RoundStopped | RunClosed):
            self._running.pop((server.life, record.job_id), None)
            opened = [one for one in server.state.barriers.get(record.job_id, {}).values()]
            waits = [barrier.key for barrier in opened if barrier.is_open]
            self.require(not waits, f"{waits} are open after {record}")

    def coordinator_stepped(
        self, server: Server, input: inputs.Input, transition: Transition
    ) -> None:
        refusal = transition.refusal
        is_forgotten = refusal is not None and refusal.kind is RefusalKind.BARRIER_FORGOTTEN
        self.require(not (is_forgotten and server.is_durable), f"{input}: {refusal}")
        if isinstance(input, inputs.Arrive) and refusal is None:
            current = self._running.get((server.life, input.key.job_id))
            text = f"an arrival of round {input.claim.round} counts in round {current}"
            self.require(input.claim.round == current, text)
        for barriers in server.state.barriers.values():
            for barrier in barriers.values():
                self._check_key(server, barrier.key)

    def _check_key(self, server: Server, key: BarrierKey) -> None:
        current = self._running.get((server.life, key.job_id))
        text = f"{key} is there in round {current}"
        self.require(key.round in (0, current), text)

    def ended(self, server: Server, arrive: inputs.Arrive, size: int, ended: Ended) -> None:
        """The coordinator answers a call that had waited for so many participants."""
        place = (server.life, arrive.key, ended.generation)
        known = self._ends.setdefault(place, ended)
        if known != ended:  # the text takes long, here and below
            self.require(False, f"two ends of {place}:\n  {known}\n  {ended}")
        mine = [arrival for who, arrival in ended.arrivals if who == arrive.participant]
        is_mine = [one.request_id for one in mine] == [arrive.request_id]
        self.require(is_mine, f"{arrive.participant} is not at {place}")
        text = f"an arrival for generation {arrive.generation} is at {place}"
        self.require(arrive.generation in (0, ended.generation), text)
        for _, arrival in ended.arrivals:
            self._check_arrival(arrival.payload, place, ended.at_ms)
        if ended.broken is not None:
            return
        self.require(len(ended.arrivals) == size, f"released {place} with {len(ended.arrivals)}")
        senders = {_sender(arrival.payload) for _, arrival in ended.arrivals}
        self.require(len(senders) == size, f"released {place} with {senders}")
        self.world.coverage.counts["event", "barrier released"] += 1

    def _check_arrival(self, payload: bytes, place: _Place, at_ms: int) -> None:
        """Check that an arrival was sent to this barrier, and counts once while known."""
        meeting, key = self._begun.get(payload), place[1]
        self.require(meeting is not None, f"{payload!r} was never sent")
        assert meeting is not None
        is_here = (meeting.name, meeting.of_run) == (key.name, key.round == 0)
        self.require(is_here, f"{payload!r} was sent to another barrier")
        before = self._counted.setdefault(payload, place)
        is_forgotten = at_ms - self._ends[before].at_ms >= REMEMBERED_MS
        text = f"{payload!r} counts at {before} and at {place}"
        self.require(before == place or is_forgotten, text)

    def listed(self, server: Server, job_id: JobId, listed: Sequence[barrier_pb2.Barrier]) -> None:
        """Someone has read which barriers of a job are open."""
        current = self._running.get((server.life, job_id))
        places = [(one.round, one.name) for one in listed]
        self.require(places == sorted(set(places)), f"the order of {places}")
        begun = {(one.name, one.of_run, _sender(sent)) for sent, one in self._begun.items()}
        for one in listed:
            of_run = one.scope == scope_pb2.SCOPE_RUN
            arrived, missing = _names(one.arrived), _names(one.missing)
            self.require(one.round == (0 if of_run else current), f"round {one.round} is listed")
            self.require(0 < len(arrived) == one.arrived_count, f"{one} counts wrong")
            self.require(one.arrived_count < one.expected_count, f"{one} waits for no one")
            unsent = [name for name in arrived if (one.name, of_run, name) not in begun]
            self.require(not unsent, f"{unsent} have not called, and are listed at {one.name}")
            both = set(arrived) & set(missing)
            self.require(not both, f"{both} have arrived and are missing at {one.name}")
        self.world.coverage.counts["event", "barrier listed"] += len(listed)


def _sender(payload: bytes) -> str:
    return payload.split()[0].decode()


def _names(participants: barrier_pb2.Participants) -> list[str]:
    return [str(rank) for rank in participants.ranks] + [*participants.nodes, *participants.names]
