"""Workers that share keys, for tests of the coordinator's core."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import WriteAnswered
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.keyspace import Answer, Condition, Keyspace, Place, Write
from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench
from support.core.fake_agents import JOB

_requests = count(1)


@dataclass
class Sharing:
    """The keys of the bench's job, seen by workers of its current round."""

    bench: Bench
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
    def space(self) -> Keyspace:
        return self.bench.state.keys[JOB]

    def value(self, key: str) -> bytes | None:
        """Return what a key holds, or None."""
        space = self.bench.state.keys.get(JOB)
        round = 0 if self.of_run else self.claim.round
        entry = None if space is None else space.entries.get(Place(round, key))
        return None if entry is None else entry.value

    def write(self, *writes: Write, **facts: Any) -> Answer | RefusalKind:
        """Write; return the answer, or why it was refused."""
        claim = self.claim
        given: dict[str, Any] = {
            "round": 0 if self.of_run else claim.round,
            "request_id": f"r{next(_requests)}",
            "answer_id": "a",
        }
        transition = self.bench.take(inputs.WriteKeys(claim, writes=writes, **(given | facts)))
        if transition.refusal is not None:
            return transition.refusal.kind
        (answered,) = (one for one in transition.effects if isinstance(one, WriteAnswered))
        return answered.answer

    def put(self, key: str, value: bytes, **facts: Any) -> Answer | RefusalKind:
        """Set a key."""
        return self.write(Write(key, value=value), **facts)

    def add(self, key: str, amount: int, **facts: Any) -> int | RefusalKind:
        """Add to a number; return the sum."""
        answer = self.write(Write(key, amount=amount), **facts)
        return answer if isinstance(answer, RefusalKind) else answer.results[0].sum

    def swap(self, key: str, expected: bytes | int, value: bytes, **facts: Any) -> bool:
        """Compare with a value or a revision, and set; return whether the key was set."""
        held = Condition(modified=expected) if isinstance(expected, int) else Condition(expected)
        answer = self.write(Write(key, value=value, expected=held), **facts)
        assert isinstance(answer, Answer), answer
        return answer.results[0].revision > 0


def sharing(**facts: Any) -> Sharing:
    """Return the keys of a job whose first round runs on the nodes a and b."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=2, max_restarts=3))
    bench.run_round("a", "b")
    return Sharing(bench, **facts)
