"""How the workers of a node failed or ended: each counts once.

The end of a worker that has recorded an error before belongs to the same failure. But if it ends
with 0 by itself before the round is stopped, it has survived its error and has not failed.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import HeldRound, Node, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Round, RoundReason
from rallypoint.server.core.model.worker import FailedWorker, WorkerExit
from rallypoint.server.core.rounds.drains import note_first_exit
from rallypoint.server.core.rounds.timelines import with_last_exit
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.verdicts.blame import (
    find_verdict,
    with_end,
    with_failures,
    without_failure,
)


def _find_fresh(
    known: tuple[WorkerExit, ...], exits: tuple[WorkerExit, ...]
) -> tuple[WorkerExit, ...]:
    """Return the exits that add something: of each worker an error while it runs, then its end."""
    has_ended = {exit.local_rank: exit.has_ended for exit in known}
    return tuple(
        exit
        for exit in exits
        if not has_ended.get(exit.local_rank, False)
        and (exit.has_ended or exit.local_rank not in has_ended)
    )


def _merge_exits(
    known: tuple[WorkerExit, ...], fresh: tuple[WorkerExit, ...]
) -> tuple[WorkerExit, ...]:
    """Return one exit per worker, the latest."""
    latest = {exit.local_rank: exit for exit in (*known, *fresh)}
    return tuple(latest.values())


def date_exits(draft: Draft, exits: tuple[WorkerExit, ...]) -> tuple[WorkerExit, ...]:
    """Return the exits with their times, which are never later than now.

    After a stall a report may have arrived later than that, because the clock was held back.
    """
    dated = (exit.dated(draft.now_ms) for exit in exits)
    return tuple(
        exit if (exit.at_ms or 0) <= draft.now_ms else replace(exit, at_ms=draft.now_ms)
        for exit in dated
    )


def update_held_exits(draft: Draft, held: HeldRound, exits: tuple[WorkerExit, ...]) -> HeldRound:
    """Return a held round that was not adopted yet, with further exits of its workers."""
    fresh = date_exits(draft, _find_fresh(held.exits, exits))
    merged = _merge_exits(held.exits, fresh)
    state = held.state
    if any(exit.is_failure for exit in fresh):
        state = NodeState.FAILED
    elif not held.start_failure and _have_survived(held.exits, merged):
        state = _state_without_failures(held.pids)
    return replace(held, state=state, exits=merged)


def _have_survived(before: tuple[WorkerExit, ...], after: tuple[WorkerExit, ...]) -> bool:
    """Return whether workers had failed, and none of them has after all."""
    return any(exit.is_failure for exit in before) and not any(exit.is_failure for exit in after)


def _state_without_failures(pids: tuple[int, ...]) -> NodeState:
    """Return the state of a node whose workers run, as far as they are known to be started."""
    return NodeState.STARTED if pids else NodeState.ASSIGNED


def register_exits(draft: Draft, session: SessionId, exits: tuple[WorkerExit, ...]) -> None:
    """Note how a member's workers failed or ended, each once."""
    node = draft.require_node(session)
    job = draft.require_job(node.job_id)
    round = job.round
    fresh = _find_fresh(node.exits, exits)
    if not fresh or round is None or node.assignment is None:
        return
    fresh = date_exits(draft, fresh)
    running = {exit.local_rank: exit for exit in node.exits}  # they have failed, and still run
    if any(exit.has_ended for exit in fresh):
        round = note_first_exit(round, node, draft.now_ms)
    any_finished = round.any_finished or any(exit.exit_code == 0 for exit in fresh)
    round = with_last_exit(replace(round, any_finished=any_finished), fresh, draft.now_ms)
    state, kept, count = node.state, list[WorkerExit](), round.failure_count
    failed = list[FailedWorker]()
    for exit in fresh:
        rank = node.assignment.first_rank + exit.local_rank
        recorded = running.get(exit.local_rank)
        survived = without_failure(round, rank) if recorded and _may_survive(job, exit) else None
        if survived is not None:
            round = survived
        elif recorded is not None:
            state, round = NodeState.FAILED, with_end(round, rank, exit)
            exit = exit if exit.error is not None else exit.after_record(recorded)
        elif exit.is_failure:
            failed.append(_failed_worker(node, rank, exit))
        kept.append(exit.without_words())
    if failed:
        state, round = NodeState.FAILED, with_failures(round, failed, draft.now_ms)
    # The round keeps the failures that matter whole; a node keeps only how its workers ended.
    merged = _merge_exits(node.exits, tuple(kept))
    is_start_sound = round.start_failure is None or round.start_failure[0] != node.name
    if round.failure_count < count and is_start_sound and _have_survived(node.exits, merged):
        state = _state_without_failures(node.pids)
    draft.put_node(replace(node, exits=merged, state=state))
    put_round(draft, job, round)


def _failed_worker(node: Node, rank: int, exit: WorkerExit) -> FailedWorker:
    identity = node.identity
    command = "" if identity.program is None else identity.program.worker_command
    return FailedWorker(node.name, rank, exit, host=identity.host_name, command=command)


def _may_survive(job: Job, exit: WorkerExit) -> bool:
    """Return whether a worker that had recorded an error has ended with 0 by itself.

    The agent sends an error with the exit if the worker has failed all the same. Once the round is
    being stopped, what stopped it remains.
    """
    is_success = exit.exit_code == 0 and exit.error is None and not exit.agent_signalled_first
    return is_success and job.phase is Phase.RUNNING


def put_round(draft: Draft, job: Job, round: Round) -> None:
    """Store the round with its new facts, and correct the verdict while that is open."""
    had_failures = job.round is not None and job.round.failure_count > round.failure_count
    if job.phase is Phase.RUNNING and had_failures:
        _withdraw_verdict(draft, job, round)
        return
    # The growth ended the round, not a failure during its stop.
    has_verdict = round.stop_reason is not RoundReason.GROWTH or round.departures
    is_open = job.phase is Phase.STOPPING and has_verdict
    verdict = (find_verdict(round) if is_open else None) or job.verdict
    draft.put_job(replace(job, round=round, verdict=verdict))
    if verdict is not None and (job.verdict is None or verdict.text != job.verdict.text):
        draft.emit(job.job_id, "verdict_corrected", round=round.header.number, why=verdict.text)


def _withdraw_verdict(draft: Draft, job: Job, round: Round) -> None:
    """Store a round that runs on with fewer failures; `rounds.advance` judges those left."""
    verdict, why = job.verdict, "the worker that recorded an error ended with exit code 0"
    if round.failure_count == 0:
        draft.set_deadline(DeadlineKind.CULPRIT, job.job_id, None)
    if verdict is not None and verdict.round == round.header.number:
        earlier = (one.verdict for one in reversed(job.history) if one.run == job.run)
        verdict = find_verdict(round) or next((one for one in earlier if one is not None), None)
        why = why if verdict is None else f"{why}; now: {verdict.text}"
        draft.emit(job.job_id, "verdict_corrected", round=round.header.number, why=why)
    draft.put_job(replace(job, round=round, verdict=verdict))
