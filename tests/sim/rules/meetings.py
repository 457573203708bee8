"""What workers may rely on at barriers, judged by what they sent and what was sent to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import Record, RoundSealed, RoundStopped, RunClosed
from rallypoint.server.core.model.barrier import BarrierKey, Ended
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.step import Transition
from sim.rules.rules import Checker

if TYPE_CHECKING:
    from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
    from sim.meetings.callers import Call, Caller, Meeting
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

    def began(self, call: Call, meeting: Meeting) -> None:
        """A worker calls."""
        self._begun[call.caller.payload] = meeting

    def received(self, caller: Caller, answer: barrier_pb2.ArriveResponse) -> None:
        """A worker has received the release of its barrier."""
        ranks = [payload.split()[0] for payload in answer.payloads]
        names = answer.participants
        whose = [b"%d" % rank for rank in names.ranks]
        whose += [name.removeprefix("w").encode() for name in names.names]
        self.require(ranks == whose, f"the payloads of {ranks} are named as those of {whose}")
        self.require(caller.payload in answer.payloads, f"{caller.payload!r} is not in {answer}")

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
        if isinstance(input, inputs.Arrive) and transition.refusal is None:
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

    def ended(self, server: Server, arrive: inputs.Arrive, call: Call, ended: Ended) -> None:
        """The coordinator answers a call that had waited."""
        place = (server.life, arrive.key, ended.generation)
        known = self._ends.setdefault(place, ended)
        self.require(known == ended, f"two ends of {place}:\n  {known}\n  {ended}")
        mine = [arrival for who, arrival in ended.arrivals if who == arrive.participant]
        is_mine = [one.request_id for one in mine] == [arrive.request_id]
        self.require(is_mine, f"{arrive.participant} is not at {place}")
        if ended.broken is not None:
            return
        size = call.caller.process.order.header.world_size
        self.require(len(ended.arrivals) == size, f"released {place} with {len(ended.arrivals)}")
        ranks = {int(arrival.payload.split()[0]) for _, arrival in ended.arrivals}
        self.require(len(ranks) == size, f"released {place} with the ranks {ranks}")
        for _, arrival in ended.arrivals:
            meeting = self._begun.get(arrival.payload)
            self.require(meeting is not None, f"{arrival.payload!r} was never sent")
            assert meeting is not None
            of_run = arrive.key.round == 0
            is_here = (meeting.name, meeting.of_run) == (arrive.key.name, of_run)
            self.require(is_here, f"{arrival.payload!r} was sent to another barrier")
            before = self._counted.setdefault(arrival.payload, place)
            text = f"{arrival.payload!r} counts at {before} and at {place}"
            self.require(before == place, text)
        self.world.coverage.counts["event", "barrier released"] += 1
