"""Planted bugs: each breaks a rule, and the checkers must notice it.

A bug replaces one function of the product for as long as its context is open. The functions are
the product's own, so a bug that no longer fits them fails to apply instead of proving nothing. The
bugs here are in the cores; `outer_bugs.py` has those around the cores.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core import fence as agent_fence
from rallypoint.agent.core import step as agent_core
from rallypoint.agent.core import work as agent_work
from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.core.held_round import Stage
from rallypoint.agent.core.leaving import drain as agent_drain
from rallypoint.agent.core.reports import SucceededReport
from rallypoint.server.core import step as core
from rallypoint.server.core.model.desired import Desired, DesiredFinished
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import Departure, Member, Round, RoundReason
from rallypoint.server.core.model.verdict import Consequence, Verdict
from rallypoint.server.core.model.worker import FailedWorker, WorkerExit
from rallypoint.server.core.rounds import desired, fences, ranks, rounds, settling
from rallypoint.server.core.sessions import admission, adoption, exits, reports, sessions
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.tally import Tally
from rallypoint.server.core.verdicts import blame
from rallypoint.server.core.verdicts import policy as failures
from sim.durable.owner_bugs import OWNER_BUGS
from sim.durable.timeline_bugs import TIMELINE_BUGS
from sim.hangs.bugs import HANG_BUGS
from sim.seeds.durable_bugs import DURABLE_BUGS
from sim.seeds.key_bugs import KEY_BUGS
from sim.seeds.meeting_bugs import MEETING_BUGS
from sim.seeds.operation_bugs import OPERATION_BUGS
from sim.seeds.outer_bugs import OUTER_BUGS
from sim.seeds.planting import Bug, Patch


def _reuse_a_number() -> list[Patch]:
    """Reuse the number of a round that was stopped before it started."""
    begin = rounds.begin_round

    def begin_round(draft: Draft, job: Job, round: Round) -> None:
        if job.history and job.history[-1].started_after_ms is None:
            header = replace(round.header, number=job.round_number)
            for node in list(draft.nodes_of(job.job_id)):
                if node.member:
                    draft.put_node(replace(node, last_round=header.number))
            round = replace(round, header=header)
        begin(draft, job, round)

    return [(rounds, "begin_round", begin_round)]


def _forget_the_connection() -> list[Patch]:
    """Accept messages of any connection of a known session."""

    def find_sender(draft: Draft, sender: Any) -> Node | Any:
        node = draft.node(sender.session)
        if node is None:
            return real(draft, sender)
        return node

    real = reports.find_sender
    return [(module, "find_sender", find_sender) for module in (reports, sessions)]


def _start_twice() -> list[Patch]:
    """Start a round again whenever it is desired again."""

    def apply(work: Any, input: Any) -> None:
        real(work, input)
        desired, held = work.state.desired, work.state.held
        if isinstance(input, inputs.DesiredReceived) and isinstance(desired, RunOrder):
            if held is not None and held.order == desired:
                work.do(effects.StartWorkers(desired))

    real = agent_core._apply
    return [(agent_core, "_apply", apply)]


def _start_beside() -> list[Patch]:
    """Report that the node is clean as soon as the sweep begins."""

    def sweep(work: Any) -> None:
        real(work)
        work.hold(replace(work.state.held, stage=Stage.CLEAN))
        work.do(effects.ReservePort())

    real = agent_work.sweep
    return [(agent_core, "sweep", sweep)]


def _forget_programs() -> list[Patch]:
    """Accept a node whatever it runs."""
    return [(admission, "check_program", lambda *_: None)]


def _adopt_incomplete() -> list[Patch]:
    """Adopt a round with missing members."""
    return [(adoption, "_find_flaw", lambda *_: ())]


def _adopt_nothing() -> list[Patch]:
    """Stop every round that runs when a coordinator starts."""

    def find_flaw(now_ms: int, *_: object) -> tuple[Departure, ...]:
        name = NodeName("nobody")
        return (Departure(name, now_ms, RoundReason.NODE_LOST, "a bug"),)

    return [(adoption, "_find_flaw", find_flaw)]


def _overlap_ranks() -> list[Patch]:
    """Count ranks as if every node had as many workers as the first."""

    def assign_ranks(nodes: Any) -> tuple[Member, ...]:
        size = nodes[0].identity.local_world_size
        return tuple(
            replace(member, assignment=replace(member.assignment, first_rank=place * size))
            for place, member in enumerate(real(nodes))
        )

    real = ranks.assign_ranks
    return [(rounds, "assign_ranks", assign_ranks)]


def _shuffle_survivors() -> list[Patch]:
    """Ignore the former order of nodes in every round."""

    def choose_members(candidates: Any, *, slots: Any, max_nodes: int) -> Any:
        return real(tuple(reversed(candidates)), slots=(), max_nodes=max_nodes)[::-1]

    real = ranks.choose_members
    return [(rounds, "choose_members", choose_members)]


def _restart_for_free() -> list[Patch]:
    """Forget the restart count when the budget is spent."""

    def charge(kept: Any, job: Job, verdict: Verdict) -> Any:
        judgement = real(kept, job, verdict)
        if judgement.consequence is Consequence.BUDGET_SPENT:
            counts = replace(judgement.counts, restart_count=0)
            return replace(judgement, consequence=Consequence.RESTARTED, counts=counts)
        return judgement

    real = failures._charge
    return [(failures, "_charge", charge)]


def _succeed_early() -> list[Patch]:
    """Declare success when all nodes but one have succeeded."""

    def has_succeeded(round: Round, tally: Any) -> bool:
        done = tally.succeeded + len(round.succeeded_gone)
        return done > 0 and bool(done >= round.header.group_world_size - 1)

    return [(rounds, "_has_succeeded", has_succeeded)]


def _count_prompted_success() -> list[Patch]:
    """Count an exit with 0 as success although the worker was signalled to stop."""

    def worker_ended(work: Any, ended: Any) -> None:
        real(work, ended)
        held = work.state.held
        if held is not None and all(
            worker.exit is not None and worker.exit.exit_code == 0 for worker in held.workers
        ):
            work.report(SucceededReport(held.number))

    real = agent_core._on_worker_ended
    return [(agent_core, "_on_worker_ended", worker_ended)]


def _settle_early() -> list[Patch]:
    """Settle a stopped round whose members may still run."""

    def stopping(draft: Draft, job: Job) -> bool:
        settling.settle(draft, job)
        return True

    return [(rounds, "_advance_stopping", stopping)]


def _wait_for_ever() -> list[Patch]:
    """Wait without a limit for a node whose stream broke."""

    def note_broken_stream(draft: Draft, sender: Any, **how: bool) -> Any:
        refusal = real(draft, sender, **how)
        draft.set_deadline(DeadlineKind.GRACE, sender.session, None)
        return refusal

    real = sessions.note_broken_stream
    return [(core, "note_broken_stream", note_broken_stream)]


def _tell_two_outcomes() -> list[Patch]:
    """Send every second node of a successful run the outcome "failed"."""

    def desired_state(job: Job, node: Node, *how: Any) -> Desired:
        wanted = real(job, node, *how)
        if isinstance(wanted, DesiredFinished) and node.arrival % 2:
            return replace(wanted, outcome=Outcome.FAILED)
        return wanted

    real = desired.desired_state
    return [(desired, "desired_state", desired_state)]


def _place_the_cordoned() -> list[Patch]:
    """Include every clean node in a round, cordoned or not."""

    def choose_candidates(job: Job, nodes: Any) -> tuple[Node, ...]:
        return tuple(node for node in nodes if node.is_clean and node.drain is None)

    return [(rounds, "choose_candidates", choose_candidates)]


def _wait_for_quarantine() -> list[Patch]:
    """Wait for the end of a quarantine although the round needs the node."""
    return [(Tally, "placeable", lambda tally, min_nodes: tally.eligible)]


def _go_back() -> list[Patch]:
    """Let an agent forget its epoch when its stream breaks."""

    def apply(work: Any, input: Any) -> None:
        real(work, input)
        if isinstance(input, inputs.Disconnected):
            work.change(epoch=0)

    real = agent_core._apply
    return [(agent_core, "_apply", apply)]


def _forget_a_drain() -> list[Patch]:
    """Forget the drain of a node when it becomes clean."""

    def become_ready(draft: Draft, node: Node, ready: Any) -> None:
        real(draft, replace(node, drain=None), ready)

    real = reports.become_ready
    return [(reports, "become_ready", become_ready)]


def _forget_to_fence() -> list[Patch]:
    """Let workers run on, however long their agent gets no answer."""

    def fence_kill_ms(state: Any) -> int | None:
        ends_ms = real(state)
        return None if ends_ms is None else ends_ms + 3_600_000

    real = agent_fence.fence_kill_ms
    return [
        (agent_core, "fence_kill_ms", fence_kill_ms),
        (agent_core, "fence_stop_ms", lambda state: None),
    ]


def _judge_by_a_stale_lease() -> list[Patch]:
    """Assume that a lost node's last heartbeat is two leases older than it is."""

    def raise_fence(draft: Draft, node: Node, until_ms: int) -> None:
        real(draft, node, until_ms - 2 * draft.state.lease_ms(node.identity.spec))

    real = fences._raise
    return [(fences, "_raise", raise_fence)]


def _take_a_stall_for_deaths() -> list[Patch]:
    """Declare nodes lost whose streams broke during a stall of the coordinator."""
    return [(core, "note_stall", lambda path, *_: path)]


def _let_newcomers_outrank() -> list[Patch]:
    """Let an agent that came first keep out the members of the round that runs."""
    return [(sessions, "displace_newcomers", lambda draft, hello: None)]


def _set_aside_at_once() -> list[Patch]:
    """Set every member of a stopped round aside, as if its stop were overdue."""
    real = rounds._advance_stopping

    def stopping(draft: Draft, job: Job) -> bool:
        for node in list(draft.nodes_of(job.job_id)):
            if node.member and not node.is_clean:
                draft.put_node(replace(node, set_aside=True))
        return real(draft, draft.require_job(job.job_id))

    return [(rounds, "_advance_stopping", stopping)]


def _fail_after_a_drain() -> list[Patch]:
    """Let an agent that an operator has drained exit with 1."""
    real = agent_drain.begin_drain

    def begin_drain(work: Any, time_ms: int, reason: str, ending: Any) -> None:
        code = ending.exit_code or 1
        real(work, time_ms, reason, replace(ending, exit_code=code))

    return [(agent_drain, "begin_drain", begin_drain)]


def _fail_twice() -> list[Patch]:
    """Count the end of a worker that has failed already as one more failure."""

    def with_end(round: Round, rank: int, exit: WorkerExit) -> Round:
        failed = FailedWorker(round.failures[0].name, rank, exit)
        return blame.with_failures(round, [failed], round.first_failure_ms or 0)

    return [(exits, "with_end", with_end)]


BUGS: dict[str, Bug] = {
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
    "forget to compare programs": (_forget_programs, frozenset({"OneProgram"})),
    "adopt an incomplete round": (_adopt_incomplete, frozenset({"invariant"})),
    "adopt nothing": (_adopt_nothing, frozenset({"WorkersDoNotNotice"})),
    "give ranks twice": (_overlap_ranks, frozenset({"RanksOnce", "invariant"})),
    "shuffle survivors": (_shuffle_survivors, frozenset({"SurvivorsKeepRanks"})),
    "overdraw the budget": (_restart_for_free, frozenset({"BudgetHolds"})),
    "succeed early": (_succeed_early, frozenset({"SuccessIsEarned"})),
    "count a prompted exit as success": (_count_prompted_success, frozenset({"SuccessIsEarned"})),
    "settle a round that still runs": (_settle_early, frozenset({"OneRoundLives", "Liveness"})),
    "wait for ever for a node": (
        _wait_for_ever,
        frozenset({"Liveness", "NobodyWaitsForEver"}),
    ),
    "tell two outcomes": (_tell_two_outcomes, frozenset({"OutcomeIsOne", "ExitsClean"})),
    "place a cordoned node": (_place_the_cordoned, frozenset({"SetAsideHolds"})),
    "wait for a quarantine": (_wait_for_quarantine, frozenset({"QuarantineYields"})),
    "go back to an older epoch": (_go_back, frozenset({"AgentOnlyMovesOn"})),
    "set nodes aside at once": (_set_aside_at_once, frozenset({"OneRoundLives"})),
    "fail after a drain": (_fail_after_a_drain, frozenset({"ExitsClean"})),
    "forget a drain": (_forget_a_drain, frozenset({"DrainedStaysOut"})),
    "forget to fence": (_forget_to_fence, frozenset({"FenceHolds"})),
    "judge a node by a stale lease": (_judge_by_a_stale_lease, frozenset({"FenceHolds"})),
    "take a stall for deaths": (_take_a_stall_for_deaths, frozenset({"WorkersDoNotNotice"})),
    "let newcomers outrank members": (_let_newcomers_outrank, frozenset({"WorkersDoNotNotice"})),
    "count a failure twice": (_fail_twice, frozenset({"WorkersFailOnce"})),
    **OUTER_BUGS,
    **MEETING_BUGS,
    **KEY_BUGS,
    **OPERATION_BUGS,
    **DURABLE_BUGS,
    **OWNER_BUGS,
    **TIMELINE_BUGS,
    **HANG_BUGS,
}
"""By name: how a bug is planted, and the rules that may notice it."""
