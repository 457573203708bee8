"""Planted bugs in suspicions of hangs."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import HeldRound
from rallypoint.server.core.model.round import Hang, Round
from rallypoint.server.core.rounds import hangs
from rallypoint.server.core.sessions import reports, sessions
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.tally import Tally
from sim.seeds.planting import Bug, Patch


def _suspect_without_the_absent() -> list[Patch]:
    """Suspect a round although a member is away."""
    real = hangs._suspect_at_ms

    def suspect_at_ms(job: Job, round: Round, tally: Tally) -> int | None:
        return real(job, round, tally._replace(unknown=0))

    return [(hangs, "_suspect_at_ms", suspect_at_ms)]


def _suspect_for_ever() -> list[Patch]:
    """Withdraw no suspicion."""

    def withdraw(draft: Draft, job: Job, round: Round, hang: Hang, why: str) -> Job:
        return job

    return [(hangs, "_withdraw", withdraw)]


def _ignore_steps() -> list[Patch]:
    """Suspect a round whatever its workers report."""
    return [(hangs, "_young_until_ms", lambda job, round: round.sealed_ms)]


def _believe_what_was() -> list[Patch]:
    """Keep what was known of a member when it returns."""
    real = reports.merge_held

    def merge_held(draft: Draft, session: SessionId, held: HeldRound) -> None:
        was_ms = draft.require_node(session).still_since_ms
        real(draft, session, held)
        node = draft.node(session)
        if node is not None and was_ms is not None:
            draft.put_node(replace(node, still_since_ms=was_ms))

    return [(sessions, "merge_held", merge_held)]


RULES = frozenset({"HangsAreReal"})
HANG_BUGS: dict[str, Bug] = {
    "suspect without the absent": (_suspect_without_the_absent, RULES),
    "suspect for ever": (_suspect_for_ever, RULES),
    "ignore steps": (_ignore_steps, RULES),
    "believe what was": (_believe_what_was, RULES),
}
