"""The life of a round: forming, running, stopping.

`advance` looks at a job's facts and takes every transition that is due. It is level-triggered: it
does not matter which input changed a fact. `phases` lists the transitions, `settling` decides what
the end of a round means.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import (
    LEAVING,
    PLANNED,
    Hang,
    Notice,
    Round,
    RoundHeader,
    RoundReason,
    describe_request,
)
from rallypoint.server.core.model.verdict import Consequence, Verdict, VerdictCause
from rallypoint.server.core.model.worker import Symptom
from rallypoint.server.core.rounds.addresses import choose_master_address
from rallypoint.server.core.rounds.drains import drain_due_ms, is_held, notify
from rallypoint.server.core.rounds.hangs import must_stop, watch
from rallypoint.server.core.rounds.phases import PhaseEvent, next_phase
from rallypoint.server.core.rounds.ranks import assign_ranks, choose_members, slots_of
from rallypoint.server.core.rounds.settling import abandoned, close, settle
from rallypoint.server.core.rounds.timelines import sealed_timeline, with_start
from rallypoint.server.core.rounds.waits import (
    LAST_CALL_FACTOR,
    GiveUp,
    Seal,
    Wait,
    decide_forming,
    growth_due_ms,
)
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.tally import Tally
from rallypoint.server.core.verdicts.blame import find_verdict
from rallypoint.server.core.verdicts.health import choose_candidates, describe_cordoned
from rallypoint.server.core.verdicts.timeouts import has_timed_out

CULPRIT_DUE_MS = 400
"""How long a round waits for the culprit when only victims have failed so far. Most processes end
sooner after their connections close. It is shorter than the 0.5 s after which a broken stream is a
lost node, so it delays no recovery from a loss."""
TIMEOUT_DUE_MS = 3_000
"""How long it waits instead for evidence of the rank that did not come to a collective. The peers
of that rank have waited for its whole timeout before."""
EXIT_DUE_MS = 2_000
"""How long a round waits for the exit code of a culprit that has recorded its error and still runs.
An interpreter with torch takes up to that long to end. A departure ends the wait, so it delays no
recovery from a loss either."""


def advance(draft: Draft, job_id: JobId) -> None:
    """Take every transition of the job that is due now."""
    for _ in range(len(Phase) + 1):  # more transitions at one time would be a bug
        job = draft.job(job_id)
        if job is None or not _advance_once(draft, job):
            return
    raise BrokenInvariant(job_id, "its transitions do not come to rest")


def _advance_once(draft: Draft, job: Job) -> bool:
    """Take one transition that is due; return whether there was one."""
    match job.phase:
        case Phase.FORMING:
            return _advance_forming(draft, job)
        case Phase.RUNNING:
            return _advance_running(draft, job)
        case Phase.STOPPING:
            return _advance_stopping(draft, job)
        case Phase.CLOSED:
            return False


def _advance_forming(draft: Draft, job: Job) -> bool:
    if draft.awaits_adoption(job.job_id):
        return False
    tally, now_ms = draft.tally(job.job_id), draft.now_ms
    if tally.nodes == 0:
        _abandon_later(draft, job)
        return False
    is_enough = tally.placeable(job.spec.min_nodes) >= job.spec.min_nodes
    if is_enough != (job.first_ready_ms is not None):
        job = replace(job, first_ready_ms=now_ms if is_enough else None)
        draft.put_job(job)
    match decide_forming(job, tally, now_ms):
        case Seal():
            _seal(draft, job)
            return True
        case Wait(until_ms=until_ms):
            draft.set_deadline(DeadlineKind.FORMING, job.job_id, until_ms)
            return False
        case GiveUp():
            close(draft, job, Outcome.FAILED, _too_few_nodes(draft, job))
            return False


def _abandon_later(draft: Draft, job: Job) -> None:
    """Abandon a run without nodes: at once after a goodbye, else after the join timeout."""
    if job.lost and job.lost[-1].reason in LEAVING:
        close(draft, job, Outcome.ABANDONED, abandoned(job))
    elif job.empty_since_ms is None:
        draft.put_job(replace(job, empty_since_ms=draft.now_ms))
        due_ms = draft.now_ms + job.spec.join_timeout_ms
        draft.set_deadline(DeadlineKind.ABANDON, job.job_id, due_ms)
        draft.set_deadline(DeadlineKind.FORMING, job.job_id, None)


def _too_few_nodes(draft: Draft, job: Job) -> Verdict:
    needed = job.spec.min_nodes
    ready = draft.tally(job.job_id).placeable(needed)
    subject = {0: "no node was", 1: "only 1 node was"}.get(ready, f"only {ready} nodes were")
    verb = "is" if needed == 1 else "are"
    seconds = job.spec.join_timeout_ms / 1000
    text = f"{subject} ready after {seconds:g} s; {needed} {verb} required (--nnodes)"
    if job.lost:
        text += "; lost before: " + ", ".join(departure.name for departure in job.lost)
    text += describe_cordoned(draft, job)
    return Verdict(
        VerdictCause.TOO_FEW_NODES,
        job.round_number,
        None,
        text,
        consequence=Consequence.ENDED,
    )


def _seal(draft: Draft, job: Job) -> None:
    """Fix the nodes and ranks of a new round."""
    nodes = tuple(draft.nodes_of(job.job_id))
    candidates = choose_candidates(job, nodes)
    chosen = choose_members(candidates, slots=job.slots, max_nodes=job.spec.max_nodes)
    highest = max(job.round_number, *(node.last_round for node in nodes))
    members = assign_ranks(chosen)
    first = chosen[0]
    master = choose_master_address(first, chosen[1:])
    header = RoundHeader(
        number=highest + 1,  # also above every number that another coordinator used
        run=job.run,
        world_size=sum(node.identity.local_world_size for node in chosen),
        group_world_size=len(chosen),
        master_addr=master.address,
        master_port=first.port,
        restart_count=job.counts.restart_count,
        reason=job.next_reason,
        epoch=draft.epoch,
    )
    for node, member in zip(chosen, members, strict=True):
        draft.put_node(
            replace(
                node,
                member=True,
                assignment=member.assignment,
                state=NodeState.ASSIGNED,
                last_round=header.number,
                pids=(),
                exits=(),
                still_since_ms=None,
            )
        )
    timeline = sealed_timeline(job, draft.now_ms)
    round = Round(
        header,
        members,
        draft.now_ms,
        job.disrupted_ms,
        timeline=timeline,
        reached_at=master.reached_at,
    )
    begin_round(draft, job, round)
    draft.emit(
        job.job_id,
        "round_sealed",
        (("restarts", header.restart_count),),
        round=header.number,
        nodes=header.group_world_size,
        world_size=header.world_size,
        began=header.reason.value,
    )


def begin_round(draft: Draft, job: Job, round: Round) -> None:
    """Make `round` the running round of the job; its nodes are marked as members already."""
    now_ms, job_id = draft.now_ms, job.job_id
    draft.put_job(
        replace(
            job,
            phase=next_phase(job, PhaseEvent.SEAL),
            round_number=round.header.number,
            round=round,
            slots=slots_of(round.members, round.header.group_world_size),
            first_newcomer_ms=now_ms if draft.tally(job_id).newcomers else None,
            last_arrival_ms=now_ms,
        )
    )
    draft.touch_all(job_id)
    draft.set_deadline(DeadlineKind.FORMING, job_id, None)
    draft.set_deadline(DeadlineKind.START, job_id, now_ms + draft.state.timing.start_due_ms)


def _advance_running(draft: Draft, job: Job) -> bool:
    round, tally, job_id = job.round, draft.tally(job.job_id), job.job_id
    assert round is not None
    if _has_succeeded(round, tally):
        close(draft, job, Outcome.SUCCEEDED, None)
        return False
    reason = _find_stop_reason(round, is_held=is_held(job, tally, draft.now_ms))
    if reason is not None:
        due_ms = culprit_due_ms(round)
        if due_ms is not None and draft.now_ms >= due_ms:
            job, round = _ask_for_absent(draft, job, round)
            due_ms = culprit_due_ms(round)
        if due_ms is not None and draft.now_ms < due_ms:
            _await_culprit(draft, job, round, due_ms)
            return False
        stop(draft, job, reason)
        return True
    if round.started_ms is None and tally.unstarted == 0:
        round = with_start(round, draft.now_ms)
        job = replace(job, round=round)
        draft.put_job(job)
        draft.set_deadline(DeadlineKind.START, job_id, None)
        took_ms = draft.now_ms - round.sealed_ms
        draft.emit(job_id, "round_started", round=round.header.number, took_ms=took_ms)
    if (tally.newcomers > 0) != (job.first_newcomer_ms is not None):
        # The last newcomer has left, or a disconnected one has returned.
        since_ms = draft.now_ms if tally.newcomers else None
        job = replace(
            job, first_newcomer_ms=since_ms, last_arrival_ms=since_ms or job.last_arrival_ms
        )
        draft.put_job(job)
    growth_ms, drain_ms = growth_due_ms(job, tally), drain_due_ms(job, tally)
    if drain_ms is not None and draft.now_ms >= drain_ms:
        stop(draft, job, RoundReason.DRAINED)
        return True
    if growth_ms is not None and draft.now_ms >= growth_ms:
        stop(draft, job, RoundReason.GROWTH)
        return True
    draft.set_deadline(DeadlineKind.DRAIN, job_id, drain_ms)
    draft.set_deadline(DeadlineKind.GROWTH, job_id, growth_ms)
    job = watch(draft, job)
    if must_stop(job, tally):
        stop(draft, job, RoundReason.HUNG)
        return True
    _update_notices(draft, job, growth_ms)
    return False


def _update_notices(draft: Draft, job: Job, growth_ms: int | None) -> None:
    """Notify every member when the announced events have changed."""
    round = job.round
    assert round is not None
    notices = tuple(notice for notice in round.notices if notice.name is not None)
    if growth_ms is not None:
        growth = next((notice for notice in round.notices if notice.name is None), None)
        # Every newcomer moves the time, so members get the latest possible time, once.
        since_ms = job.first_newcomer_ms or draft.now_ms
        latest_ms = max(growth_ms, since_ms + LAST_CALL_FACTOR * job.spec.settle_time_ms)
        if growth is None or growth.until_ms < growth_ms:  # a fence can move it further
            growth = Notice(None, latest_ms)
        notices = (*notices, growth)
    if notices == round.notices_sent:
        return
    draft.put_job(replace(job, round=replace(round, notices=notices, notices_sent=notices)))
    for node in draft.nodes_of(job.job_id):
        if node.member:
            notify(draft, node)


def _has_succeeded(round: Round, tally: Tally) -> bool:
    return tally.succeeded + len(round.succeeded_gone) == round.header.group_world_size


def _find_stop_reason(round: Round, *, is_held: bool) -> RoundReason | None:
    """Return what forces a running round to stop, or None.

    Args:
        round: the running round.
        is_held: the round continues although drained members have left.
    """
    if round.failures or round.start_failure is not None:
        return RoundReason.WORKER_FAILED
    if round.departures and not is_held:
        return round.departures[0].reason
    return None


def culprit_due_ms(round: Round) -> int | None:
    """Return until when a failed round waits for its culprit, or None when it does not wait.

    When every failed worker is a victim, the culprit is dying and has not been reported yet. A stop
    would kill it before it ends by its own cause, and the verdict would name a victim. A culprit
    that has recorded its error and still runs is known, but a stop now would hide its exit code.
    After the timeout of a collective, the culprit may live, and evidence shows where it stands.
    """
    if round.start_failure is not None or round.departures or round.first_failure_ms is None:
        return None
    if round.drain_began is not None:
        return None  # the drain explains the failures
    suspects = [failed for failed in round.failures if failed.symptom is not Symptom.VICTIM]
    if any(failed.exit.has_ended for failed in suspects):
        return None
    if suspects:
        return round.first_failure_ms + EXIT_DUE_MS
    if round.failure_count == round.header.world_size:
        return None  # no worker is left that could be the culprit
    if round.hang is not None and not round.hang.is_examined and has_timed_out(round):
        return round.first_failure_ms + TIMEOUT_DUE_MS
    return round.first_failure_ms + CULPRIT_DUE_MS


def _ask_for_absent(draft: Draft, job: Job, round: Round) -> tuple[Job, Round]:
    """Let evidence be taken if a collective has timed out, and no culprit has shown up.

    Not before: the other victims have ended by now, so that the living are few.
    """
    since_ms = round.first_failure_ms
    if round.hang is not None or since_ms is None or not has_timed_out(round):
        return job, round
    round = replace(round, hang=Hang(since_ms, since_ms))
    job = replace(job, round=round)
    draft.put_job(job)
    return job, round


def _await_culprit(draft: Draft, job: Job, round: Round, due_ms: int) -> None:
    """Let the workers run for a moment, and publish the provisional verdict."""
    verdict = find_verdict(round)
    is_first = draft.deadline(DeadlineKind.CULPRIT, job.job_id) != due_ms
    if not is_first and verdict == job.verdict:
        return
    draft.set_deadline(DeadlineKind.CULPRIT, job.job_id, due_ms)
    draft.put_job(replace(job, verdict=verdict))
    why = "" if verdict is None else verdict.text
    if is_first:
        draft.emit(job.job_id, "culprit_awaited", round=round.header.number, why=why)
    elif job.verdict is None or why != job.verdict.text:
        draft.emit(job.job_id, "verdict_corrected", round=round.header.number, why=why)


def stop(draft: Draft, job: Job, reason: RoundReason, note: str = "") -> None:
    """Stop the running round everywhere at once; `settle` judges it later.

    Args:
        draft: of this step.
        job: whose round it is.
        reason: why.
        note: why an operator stops it; may be empty.
    """
    round, now_ms, job_id = job.round, draft.now_ms, job.job_id
    assert round is not None
    phase = next_phase(job, PhaseEvent.STOP)
    has_timed_out_first = reason is RoundReason.WORKER_FAILED and has_timed_out(round)
    stopped = replace(
        round,
        stop_ms=now_ms,
        stop_reason=reason,
        stop_note=note,
        durable_step=round.step,
        hang=round.hang if reason is RoundReason.HUNG or has_timed_out_first else None,
    )
    verdict = find_verdict(stopped)
    # Readers see the verdict of the latest round that failed, also when this one did not.
    draft.put_job(replace(job, phase=phase, round=stopped, verdict=verdict or job.verdict))
    draft.touch_all(job_id)
    timing = draft.state.timing
    draft.set_deadline(DeadlineKind.START, job_id, None)
    draft.set_deadline(DeadlineKind.GROWTH, job_id, None)
    draft.set_deadline(DeadlineKind.DRAIN, job_id, None)
    draft.set_deadline(DeadlineKind.CULPRIT, job_id, None)
    draft.set_deadline(DeadlineKind.HANG, job_id, None)
    due_ms = now_ms + job.spec.shutdown_timeout_ms + timing.stop_slack_ms
    draft.set_deadline(DeadlineKind.STOP, job_id, due_ms)
    why = describe_request(reason.value, note) if verdict is None else verdict.text
    also = (("reason", reason.value),)
    draft.emit(job_id, "round_stopped", also, round=round.header.number, why=why)


def _advance_stopping(draft: Draft, job: Job) -> bool:
    round, tally = job.round, draft.tally(job.job_id)
    assert round is not None
    if round.stop_reason in PLANNED and _has_succeeded(round, tally):
        close(draft, job, Outcome.SUCCEEDED, None)
        return False
    if tally.pending > 0:
        return False
    settle(draft, job)
    return True
