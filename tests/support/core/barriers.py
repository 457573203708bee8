"""Workers at barriers, for tests of the coordinator's core."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import BarrierOver
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.barrier import (
    Barrier,
    BarrierKey,
    Ended,
    Expected,
    Participant,
    ParticipantKind,
)
from support.core.coordinator import Bench
from support.core.fake_agents import JOB

ALL_RANKS = Expected(0, all_of=ParticipantKind.RANK)
TIMEOUT_MS = 60_000

_requests = count(1)


def rank(number: int) -> Participant:
    """Return the participant with this global rank."""
    return Participant(ParticipantKind.RANK, number, "")


def node(name: str) -> Participant:
    """Return the participant that is this node."""
    return Participant(ParticipantKind.NODE, 0, name)


def named(name: str) -> Participant:
    """Return the participant with this free name."""
    return Participant(ParticipantKind.NAME, 0, name)


@dataclass
class Meeting:
    """A barrier of the bench's job, seen by workers of its current round."""

    bench: Bench
    name: str = "b"
    of_run: bool = False
    claim_facts: dict[str, Any] = field(default_factory=dict)

    @property
    def claim(self) -> inputs.Claim:
        """What the token of a worker of the current round says."""
        job = self.bench.job()
        facts: dict[str, Any] = {
            "run": job.run,
            "round": job.round_number,
            "token": "t",
            "is_signed": True,
        }
        return inputs.Claim(JOB, **(facts | self.claim_facts))

    @property
    def key(self) -> BarrierKey:
        claim = self.claim
        return BarrierKey(JOB, claim.run, 0 if self.of_run else claim.round, self.name)

    @property
    def barrier(self) -> Barrier:
        return self.bench.state.barriers[JOB][self.key]

    @property
    def arrived(self) -> list[Participant]:
        """Who has arrived at the open generation, in order."""
        return sorted(self.bench.state.arrivals.get(self.key, {}))

    def arrive(
        self, who: Participant, expected: Expected = ALL_RANKS, **facts: Any
    ) -> RefusalKind | None:
        """Arrive; return why it was refused, or None."""
        arrival: dict[str, Any] = {"timeout_ms": TIMEOUT_MS, "request_id": f"r{next(_requests)}"}
        arrive = inputs.Arrive(self.claim, self.key, who, expected, **(arrival | facts))
        refusal = self.bench.take(arrive).refusal
        return None if refusal is None else refusal.kind

    def ends(self) -> list[Ended]:
        """Return how every generation has ended, oldest first."""
        return [
            effect.ended
            for effect in self.bench.effects
            if isinstance(effect, BarrierOver) and effect.key.name == self.name
        ]

    def the_end(self) -> Ended:
        """Return how the only generation ended."""
        (ended,) = self.ends()
        return ended
