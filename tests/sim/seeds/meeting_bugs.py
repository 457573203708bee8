"""Planted bugs at barriers."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rallypoint.server.api.barriers import messages
from rallypoint.server.api.barriers.waits import BarrierWaits
from rallypoint.server.core import step
from rallypoint.server.core.barriers import arrivals, ends
from rallypoint.server.core.messages.effects import BarrierOver
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.barrier import Barrier, Ended, Expected
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.rounds import claims
from rallypoint.server.core.state.draft import Draft
from sim.seeds.planting import Bug, Patch


def _release_without_everyone() -> list[Patch]:
    """Release a barrier when one participant is still missing."""
    real = arrivals._resolve

    def resolve(draft: Draft, arrive: Any, job: Job) -> Any:
        expected = real(draft, arrive, job)
        if isinstance(expected, Refusal) or expected.participants:
            return expected
        return replace(expected, count=max(1, expected.count - 1))

    return [(arrivals, "_resolve", resolve)]


def _release_twice() -> list[Patch]:
    """Keep the arrivals of a released generation for the next one."""
    real = Draft.put_barrier

    def put_barrier(draft: Draft, barrier: Barrier) -> None:
        last = barrier.ends[-1] if barrier.ends else None
        if not barrier.is_open and last is not None and last.broken is None and last.arrivals[1:]:
            who, arrival = last.arrivals[0]
            draft._arrivals[barrier.key] = {who: arrival}
            barrier = replace(
                barrier,
                generation=barrier.generation + 1,
                expected=Expected(len(last.arrivals)),
                opened_ms=draft.now_ms,
                deadline_ms=draft.now_ms + 5_000,
                arrived=1,
                round=arrival.round,
            )
        real(draft, barrier)

    return [(Draft, "put_barrier", put_barrier)]


def _answer_with_another_generation() -> list[Patch]:
    """Answer with the payloads of the generation before."""
    real, known = ends._end, dict[Any, Ended]()

    def end(draft: Draft, barrier: Barrier, broken: Any) -> None:
        real(draft, barrier, broken)
        over = draft.effects[-1]
        assert isinstance(over, BarrierOver)
        before = known.get(over.key)
        known[over.key] = over.ended
        if before is not None and before.broken is None and broken is None:
            mixed = replace(over.ended, arrivals=before.arrivals)
            draft.effects[-1] = BarrierOver(over.key, mixed)

    return [(ends, "_end", end)]


def _take_old_rounds() -> list[Patch]:
    """Count the arrival of a worker whose round is over."""
    real = claims.check_claim

    def check_claim(draft: Draft, claim: Any) -> Any:
        found = real(draft, claim)
        job = draft.job(claim.job_id)
        is_old = getattr(found, "kind", None) is RefusalKind.OLD_ROUND
        return job if is_old and job is not None and job.round is not None else found

    return [(arrivals, "check_claim", check_claim)]


def _keep_the_scope() -> list[Patch]:
    """Keep the barriers of a round that is over."""
    return [(ends, "drop_barrier", lambda draft, barrier: None)]


def _wait_too_long() -> list[Patch]:
    """Let a barrier wait until the end of the call, and a little longer."""

    def timeout_ms(request: Any, left_s: float | None) -> int:
        return int((left_s or 600) * 1000) + 500

    return [(messages, "_timeout_ms", timeout_ms)]


def _count_a_retry() -> list[Patch]:
    """Take another attempt after the release for the next arrival."""

    def is_known(draft: Draft, barrier: Barrier, arrive: Any) -> bool:
        arrival = draft.arrival(barrier.key, arrive.participant)
        return arrival is not None and arrival.request_id == arrive.request_id

    def check(draft: Draft, barrier: Barrier, arrive: Any, expected: Expected) -> Any:
        return real(draft, barrier, replace(arrive, request_id="another"), expected)

    real = arrivals._check
    return [(arrivals, "_is_known", is_known), (arrivals, "_check", check)]


def _wait_for_the_lost() -> list[Patch]:
    """Do not fail a barrier when its round is stopped."""
    return [(ends, "break_if_hopeless", lambda draft, barrier, job: None)]


def _forget_the_deadline() -> list[Patch]:
    """Set no deadline for a barrier."""
    return [
        (ends, "note_due", lambda draft, job_id, at_ms: None),
        (arrivals, "note_due", lambda draft, job_id, at_ms: None),
    ]


def _mix_up_payloads() -> list[Patch]:
    """Name the participants in another order than their payloads."""
    real = messages.participants_message

    def message(participants: Any) -> Any:
        found = real(participants)
        found.ranks[:] = list(found.ranks)[::-1]
        found.names[:] = list(found.names)[::-1]
        return found

    return [(messages, "participants_message", message)]


def _forget_who_waits() -> list[Patch]:
    """Do not wake the calls that wait for a generation."""
    return [(BarrierWaits, "_answer", lambda waits, over: None)]


def _forget_arrivals_in_the_journal() -> list[Patch]:
    """Journal only the first arrival of a generation."""
    real = arrivals.receive_arrival

    def receive(draft: Draft, arrive: Any) -> Any:
        refusal = real(draft, arrive)
        if len(draft.arrivals_of(arrive.key)) > 1:
            draft.records.clear()
        return refusal

    return [(step, "receive_arrival", receive)]


HOLD = frozenset({"BarriersHold"})
FIRST = frozenset({"AnswersComeFirst"})
REPLAY = frozenset({"ReplayIsMemory"})

MEETING_BUGS: dict[str, Bug] = {
    "release without everyone": (_release_without_everyone, HOLD),
    "release twice": (_release_twice, HOLD | REPLAY | {"invariant"}),
    "answer with another generation": (_answer_with_another_generation, HOLD),
    "take old rounds": (_take_old_rounds, HOLD),
    "keep the scope": (_keep_the_scope, HOLD),
    "wait too long": (_wait_too_long, FIRST),
    "count a retry": (_count_a_retry, HOLD),
    "wait for the lost": (_wait_for_the_lost, HOLD | FIRST),
    "forget the deadline of a barrier": (_forget_the_deadline, frozenset({"invariant"})),
    "mix up payloads": (_mix_up_payloads, HOLD),
    "forget who waits": (_forget_who_waits, FIRST),
    "forget arrivals in the journal": (_forget_arrivals_in_the_journal, REPLAY),
}
