"""Bugs that were put in on purpose: each breaks a rule of its own, and the checkers must notice.

A bug replaces one function of a core for as long as its context is open. The functions are the
cores' own, so a bug that no longer fits them fails to apply instead of proving nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rallypoint.agent.core import fence as agent_fence
from rallypoint.agent.core import inputs
from rallypoint.agent.core import step as agent_core
from rallypoint.agent.core.model import DesiredRun, Stage, SucceededReport
from rallypoint.server.core import (
    adoption,
    desired,
    failures,
    fences,
    ranks,
    reports,
    rounds,
    sessions,
)
from rallypoint.server.core import model as server
from rallypoint.server.core import step as core
from rallypoint.server.core.deadlines import DeadlineKind
from rallypoint.server.core.effects import Desired, DesiredFinished
from rallypoint.server.core.node import Node
from rallypoint.server.core.state import Draft, Tally

Patch = tuple[Any, str, Callable[..., Any]]
"""Module or class, name, and what takes its place."""


def _reuse_a_number() -> list[Patch]:
    """Give every round the number that the last one had, if that was stopped before it started."""
    begin = rounds.begin_round

    def begin_round(draft: Draft, job: server.Job, round: server.Round) -> None:
        if job.history and job.history[-1].started_after_ms is None:
            header = replace(round.header, number=job.round_number)
            for node in list(draft.nodes_of(job.job_id)):
                if node.member:
                    draft.put_node(node._replace(held_round=header.number))
            round = replace(round, header=header)
        begin(draft, job, round)

    return [(rounds, "begin_round", begin_round)]


def _forget_the_connection() -> list[Patch]:
    """Take what comes over any connection of a known session."""

    def speaker(draft: Draft, sender: Any) -> Node | Any:
        node = draft.node(sender.session)
        if node is None:
            return real(draft, sender)
        return node

    real = reports.speaker
    return [(reports, "speaker", speaker), (sessions, "speaker", speaker)]


def _start_twice() -> list[Patch]:
    """Start a round again whenever its order comes again."""

    def take(work: Any, said: Any) -> None:
        real(work, said)
        desired, held = work.state.desired, work.state.held
        if isinstance(said, inputs.DesiredCame) and isinstance(desired, DesiredRun):
            if held is not None and held.order == desired.order:
                work.do(inputs.StartWorkers(desired.order))

    real = agent_core._take
    return [(agent_core, "_take", take)]


def _start_beside() -> list[Patch]:
    """Report clean as soon as the workers were signalled."""

    def sweep(work: Any) -> None:
        real(work)
        work.hold(replace(work.state.held, stage=Stage.CLEAN))
        work.do(inputs.ReservePort())

    real = agent_core._sweep
    return [(agent_core, "_sweep", sweep)]


def _adopt_incomplete() -> list[Patch]:
    """Adopt a round of which members are missing."""
    return [(adoption, "_find_flaw", lambda *_: ())]


def _adopt_nothing() -> list[Patch]:
    """Stop every round that a coordinator finds running."""

    def find_flaw(now_ms: int, *_: object) -> tuple[server.Departure, ...]:
        name = server.NodeName("nobody")
        return (server.Departure(name, now_ms, server.RoundReason.NODE_LOST, "a bug"),)

    return [(adoption, "_find_flaw", find_flaw)]


def _overlap_ranks() -> list[Patch]:
    """Count ranks as if every node had as many workers as the first."""

    def assign_ranks(nodes: Any) -> tuple[server.Member, ...]:
        size = nodes[0].identity.local_world_size
        return tuple(
            replace(member, assignment=replace(member.assignment, first_rank=place * size))
            for place, member in enumerate(real(nodes))
        )

    real = ranks.assign_ranks
    return [(rounds, "assign_ranks", assign_ranks)]


def _shuffle_survivors() -> list[Patch]:
    """Order the nodes of every round anew."""

    def choose_members(candidates: Any, *, slots: Any, max_nodes: int) -> Any:
        return real(tuple(reversed(candidates)), slots=(), max_nodes=max_nodes)[::-1]

    real = ranks.choose_members
    return [(rounds, "choose_members", choose_members)]


def _restart_for_free() -> list[Patch]:
    """Charge a restart and forget it when the budget is spent."""

    def charge(kept: Any, job: server.Job, verdict: server.Verdict) -> Any:
        judgement = real(kept, job, verdict)
        if judgement.consequence is server.Consequence.BUDGET_SPENT:
            return replace(judgement, consequence=server.Consequence.RESTARTED, restart_count=0)
        return judgement

    real = failures._charge
    return [(failures, "_charge", charge)]


def _succeed_early() -> list[Patch]:
    """Call a run a success when all but one of its nodes have succeeded."""

    def has_succeeded(round: server.Round, tally: Any) -> bool:
        done = tally.succeeded + len(round.succeeded_gone)
        return done > 0 and bool(done >= round.header.group_world_size - 1)

    return [(rounds, "_has_succeeded", has_succeeded)]


def _count_prompted_success() -> list[Patch]:
    """Take an exit with 0 for success although the worker had been told to stop."""

    def worker_ended(work: Any, said: Any) -> None:
        real(work, said)
        held = work.state.held
        if held is not None and all(
            worker.exit is not None and worker.exit.exit_code == 0 for worker in held.workers
        ):
            work.report(SucceededReport(held.order.number))

    real = agent_core._worker_ended
    return [(agent_core, "_worker_ended", worker_ended)]


def _settle_early() -> list[Patch]:
    """Settle a stopped round although members of it may still run."""

    def stopping(draft: Draft, job: server.Job) -> bool:
        rounds._settle(draft, job)
        return True

    return [(rounds, "_stopping", stopping)]


def _wait_for_ever() -> list[Patch]:
    """Wait for ever for a node whose stream broke."""

    def broken(draft: Draft, sender: Any) -> Any:
        refusal = real(draft, sender)
        draft.set_deadline(DeadlineKind.GRACE, sender.session, None)
        return refusal

    real = sessions.broken
    return [(core, "broken", broken)]


def _forget_a_record() -> list[Patch]:
    """Keep a success out of the journal."""

    def mark_succeeded(draft: Draft, node: Node) -> None:
        kept = list(draft.records)
        real(draft, node)
        draft.records[:] = kept

    real = reports.mark_succeeded
    return [(reports, "mark_succeeded", mark_succeeded)]


def _tell_two_outcomes() -> list[Patch]:
    """Tell every second node of a run that succeeded that it failed."""

    def desired_state(job: server.Job, node: Node, *how: Any) -> Desired:
        wanted = real(job, node, *how)
        if isinstance(wanted, DesiredFinished) and node.arrival % 2:
            return replace(wanted, outcome=server.Outcome.FAILED)
        return wanted

    real = desired.desired_state
    return [(desired, "desired_state", desired_state)]


def _place_the_cordoned() -> list[Patch]:
    """Take whoever is clean into a round."""

    def choose_candidates(job: server.Job, nodes: Any) -> tuple[Node, ...]:
        return tuple(node for node in nodes if node.is_clean and node.drain is None)

    return [(rounds, "choose_candidates", choose_candidates)]


def _wait_for_quarantine() -> list[Patch]:
    """Wait for the end of a quarantine where there are too few nodes without it."""
    return [(Tally, "placeable", lambda tally, min_nodes: tally.eligible)]


def _go_back() -> list[Patch]:
    """Let an agent forget the epoch that it has heard when its stream breaks."""

    def take(work: Any, said: Any) -> None:
        real(work, said)
        if isinstance(said, inputs.Disconnected):
            work.change(epoch=0)

    real = agent_core._take
    return [(agent_core, "_take", take)]


def _forget_a_drain() -> list[Patch]:
    """Forget that a node wants to leave when it is clean."""

    def become_ready(draft: Draft, node: Node, ready: Any) -> None:
        real(draft, node._replace(drain=None), ready)

    real = reports.become_ready
    return [(reports, "become_ready", become_ready)]


def _forget_to_fence() -> list[Patch]:
    """Let workers run on however long nobody answers their agent."""

    def fence_ends_ms(state: Any) -> int | None:
        ends_ms = real(state)
        return None if ends_ms is None else ends_ms + 3_600_000

    real = agent_fence.fence_ends_ms
    return [
        (agent_core, "fence_ends_ms", fence_ends_ms),
        (agent_core, "fence_falls_ms", lambda state: None),
    ]


def _judge_by_a_stale_lease() -> list[Patch]:
    """Take a lost node's last sign of life for two leases older than it is."""

    def raise_fence(draft: Draft, node: Node, until_ms: int) -> None:
        real(draft, node, until_ms - 2 * draft.state.lease_ms(node.identity.spec))

    real = fences._raise
    return [(fences, "_raise", raise_fence)]


def _take_a_stall_for_deaths() -> list[Patch]:
    """Call nodes lost whose streams broke because the coordinator was away."""
    return [(core, "note_stall", lambda path, *_: path)]


BUGS: dict[str, tuple[Callable[[], list[Patch]], frozenset[str]]] = {
    "reuse a round number": (
        _reuse_a_number,
        frozenset({"NumbersOnlyGrow", "NumberMeansOneRound"}),
    ),
    "forget to check the connection": (_forget_the_connection, frozenset({"OldNewsIsRefused"})),
    "start a round twice": (_start_twice, frozenset({"StartsOnce", "NumbersOnlyGrow"})),
    "call a node clean too early": (
        _start_beside,
        frozenset({"StartsOnce", "ExitsClean", "OneRoundLives"}),
    ),
    "adopt an incomplete round": (_adopt_incomplete, frozenset({"invariant"})),
    "adopt nothing": (_adopt_nothing, frozenset({"WorkersDoNotNotice"})),
    "give ranks twice": (_overlap_ranks, frozenset({"RanksOnce", "invariant"})),
    "shuffle survivors": (_shuffle_survivors, frozenset({"SurvivorsKeepRanks"})),
    "overdraw the budget": (_restart_for_free, frozenset({"BudgetHolds"})),
    "succeed early": (_succeed_early, frozenset({"SuccessIsEarned"})),
    "count a prompted exit as success": (_count_prompted_success, frozenset({"SuccessIsEarned"})),
    "settle a round that still runs": (_settle_early, frozenset({"OneRoundLives"})),
    "wait for ever for a node": (
        _wait_for_ever,
        frozenset({"Liveness", "NobodyWaitsForEver"}),
    ),
    "tell two outcomes": (_tell_two_outcomes, frozenset({"OutcomeIsOne"})),
    "place a cordoned node": (_place_the_cordoned, frozenset({"SetAsideHolds"})),
    "wait for a quarantine": (_wait_for_quarantine, frozenset({"QuarantineYields"})),
    "go back to an older epoch": (_go_back, frozenset({"AgentOnlyMovesOn"})),
    "forget a drain": (_forget_a_drain, frozenset({"DrainedStaysOut"})),
    "forget to fence": (_forget_to_fence, frozenset({"FenceHolds"})),
    "judge a node by a stale lease": (_judge_by_a_stale_lease, frozenset({"FenceHolds"})),
    "take a stall for deaths": (_take_a_stall_for_deaths, frozenset({"WorkersDoNotNotice"})),
    "forget a record": (_forget_a_record, frozenset({"ReplayIsMemory"})),
}
"""What each bug is, how it is put in, and the rules that may notice it."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while the context is open."""
    patches = BUGS[name][0]()
    kept = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    try:
        for owner, attribute, replacement in patches:
            setattr(owner, attribute, replacement)
        yield
    finally:
        for owner, attribute, original in kept:
            setattr(owner, attribute, original)
