"""The life of a run: forming, running, stopping, closed.

    FORMING --seal--> RUNNING --stop--> STOPPING --settle--> FORMING
       |                 |                  |
       +----- close -----+------ close -----+--> CLOSED

`advance` looks at a job's facts and takes every transition that is due; it is level-triggered, so
it does not matter which input changed a fact. What is not in the picture does not happen.
"""

from __future__ import annotations

from dataclasses import replace

from rallypoint.server.core.blame import find_trouble_ms, find_verdict
from rallypoint.server.core.deadlines import DeadlineKind
from rallypoint.server.core.drains import drain_due_ms, is_held, notify
from rallypoint.server.core.effects import (
    RoundSealed,
    RoundSettled,
    RoundStopped,
    RunClosed,
)
from rallypoint.server.core.failures import judge
from rallypoint.server.core.fences import fence_unclean
from rallypoint.server.core.health import blame, choose_candidates, describe_cordoned
from rallypoint.server.core.model import (
    HISTORY_MAX,
    LEAVING,
    Activity,
    Consequence,
    Job,
    JobId,
    NoticeOf,
    Outcome,
    Phase,
    Round,
    RoundHeader,
    RoundReason,
    RoundSummary,
    Symptom,
    Verdict,
    VerdictCause,
)
from rallypoint.server.core.ranks import assign_ranks, choose_members, slots_of
from rallypoint.server.core.state import Draft, Tally
from rallypoint.server.core.waits import (
    LAST_CALL_FACTOR,
    GiveUp,
    Seal,
    Wait,
    decide_forming,
    growth_due_ms,
)

REMEMBERED_MS = 86_400_000
"""How long an ended run answers with its outcome: a day."""
CULPRIT_DUE_MS = 400
"""How long a round whose failures are all those of victims waits for the culprit's own: longer
than most processes take from the close of their connections to their end, and shorter than the
time (0.5 s) after which a broken stream is a lost node, so that it delays no recovery from one."""
NAMES_MAX = 64
"""Node names that the summary of an ended round keeps."""
PLANNED = frozenset({RoundReason.GROWTH, RoundReason.DRAINED})
"""A round that is stopped for these may still succeed."""


def advance(draft: Draft, job_id: JobId) -> None:
    """Take every transition of the job that is due now."""
    for _ in range(len(Phase) + 1):  # a cycle takes no time only if something is wrong
        job = draft.job(job_id)
        if job is None or not _advance_once(draft, job):
            return
    raise AssertionError(f"job {job_id} does not come to rest")


def _advance_once(draft: Draft, job: Job) -> bool:
    """Take one transition that is due; return whether there was one."""
    match job.phase:
        case Phase.FORMING:
            return _forming(draft, job)
        case Phase.RUNNING:
            return _running(draft, job)
        case Phase.STOPPING:
            return _stopping(draft, job)
        case Phase.CLOSED:
            return False


def _forming(draft: Draft, job: Job) -> bool:
    if draft.window_is_open:
        return False
    tally, now_ms = draft.tally(job.job_id), draft.now_ms
    if tally.nodes == 0:
        _desert(draft, job)
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
            close(draft, job, Outcome.FAILED, _too_few(draft, job))
            return False


def _desert(draft: Draft, job: Job) -> None:
    """Give up a run without nodes: at once after a goodbye, else when nobody comes back."""
    if job.lost and job.lost[-1].reason in LEAVING:
        close(draft, job, Outcome.ABANDONED, job.verdict)
    elif job.deserted_ms is None:
        draft.put_job(replace(job, deserted_ms=draft.now_ms))
        due_ms = draft.now_ms + job.spec.join_timeout_ms
        draft.set_deadline(DeadlineKind.ABANDON, job.job_id, due_ms)
        draft.set_deadline(DeadlineKind.FORMING, job.job_id, None)


def _too_few(draft: Draft, job: Job) -> Verdict:
    needed = job.spec.min_nodes
    there = draft.tally(job.job_id).placeable(needed)
    seconds = job.spec.join_timeout_ms / 1000
    text = f"{there} of at least {needed} nodes were ready after {seconds:g} s"
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
    highest = max(job.round_number, *(node.held_round for node in nodes))
    members = assign_ranks(chosen)
    first = chosen[0]
    header = RoundHeader(
        number=highest + 1,  # also above what another coordinator gave
        run=job.run,
        world_size=sum(node.identity.local_world_size for node in chosen),
        group_world_size=len(chosen),
        master_addr=first.identity.address,
        master_port=first.port,
        restart_count=job.restart_count,
        reason=job.next_reason,
        epoch=draft.epoch,
    )
    for node, member in zip(chosen, members, strict=True):
        draft.put_node(
            node._replace(
                member=True,
                assignment=member.assignment,
                activity=Activity.ASSIGNED,
                held_round=header.number,
                pids=(),
                exits=(),
            )
        )
    begin_round(draft, job, Round(header, members, draft.now_ms, job.trouble_ms))
    draft.changed(
        job.job_id,
        "round_sealed",
        round=header.number,
        nodes=header.group_world_size,
        world_size=header.world_size,
        began=header.reason.value,
    )


def begin_round(draft: Draft, job: Job, round: Round) -> None:
    """Make `round`, whose members are marked already, the running round of the job."""
    now_ms, job_id = draft.now_ms, job.job_id
    draft.put_job(
        replace(
            job,
            phase=Phase.RUNNING,
            round_number=round.header.number,
            round=round,
            slots=slots_of(round.members, round.header.group_world_size),
            first_newcomer_ms=now_ms if draft.tally(job_id).newcomers else None,
            last_arrival_ms=now_ms,
        )
    )
    draft.touch_all(job_id)
    draft.records.append(RoundSealed(job_id, round.header, round.members))
    draft.set_deadline(DeadlineKind.FORMING, job_id, None)
    draft.set_deadline(DeadlineKind.START, job_id, now_ms + draft.state.timing.start_due_ms)


def _running(draft: Draft, job: Job) -> bool:
    round, tally, job_id = job.round, draft.tally(job.job_id), job.job_id
    assert round is not None
    if _has_succeeded(round, tally):
        close(draft, job, Outcome.SUCCEEDED, None)
        return False
    reason = _trouble(round, is_held=is_held(job, tally, draft.now_ms))
    if reason is not None:
        due_ms = culprit_due_ms(round)
        if due_ms is not None and draft.now_ms < due_ms:
            _await_culprit(draft, job, round, due_ms)
            return False
        stop(draft, job, reason)
        return True
    if round.started_ms is None and tally.unstarted == 0:
        job = replace(job, round=replace(round, started_ms=draft.now_ms))
        draft.put_job(job)
        draft.set_deadline(DeadlineKind.START, job_id, None)
        took_ms = draft.now_ms - round.sealed_ms
        draft.changed(job_id, "round_started", round=round.header.number, took_ms=took_ms)
    if (tally.newcomers > 0) != (job.first_newcomer_ms is not None):
        # The last one has gone, or one that was away has come back.
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
    _announce(draft, job, growth_ms)
    return False


def _announce(draft: Draft, job: Job, growth_ms: int | None) -> None:
    """Tell every member what is about to happen, when that has changed."""
    round = job.round
    assert round is not None
    notices = tuple(notice for notice in round.notices if notice.name is not None)
    if growth_ms is not None:
        known = next((notice for notice in round.notices if notice.name is None), None)
        # Every newcomer moves the instant: the latest that it can move to is told, once.
        begun_ms = job.first_newcomer_ms or draft.now_ms
        latest_ms = max(growth_ms, begun_ms + LAST_CALL_FACTOR * job.spec.settle_ms)
        if known is None or known.until_ms < growth_ms:  # a fence can move it further
            known = NoticeOf(None, latest_ms)
        notices = (*notices, known)
    if notices == round.told:
        return
    draft.put_job(replace(job, round=replace(round, notices=notices, told=notices)))
    for node in draft.nodes_of(job.job_id):
        if node.member:
            notify(draft, node)


def _has_succeeded(round: Round, tally: Tally) -> bool:
    return tally.succeeded + len(round.succeeded_gone) == round.header.group_world_size


def _trouble(round: Round, *, is_held: bool) -> RoundReason | None:
    """Return why a running round has to be stopped, or None."""
    if round.failures or round.refusal is not None:
        return RoundReason.WORKER_FAILED
    if round.departures and not is_held:
        return round.departures[0].reason
    return None


def culprit_due_ms(round: Round) -> int | None:
    """Return until when a round with failures goes on although it has failed, or None for not.

    When everybody who failed is a victim, the culprit is dying and has not been reported yet. The
    stop would kill it before it could end by its own cause, and leave the verdict to a victim.
    """
    if round.refusal is not None or round.departures or round.first_failure_ms is None:
        return None
    if round.drain_began is not None:
        return None  # it explains them
    if round.failure_count == round.header.world_size:
        return None  # nobody is left to be the culprit
    if any(failed.symptom is not Symptom.VICTIM for failed in round.failures):
        return None
    return round.first_failure_ms + CULPRIT_DUE_MS


def _await_culprit(draft: Draft, job: Job, round: Round, due_ms: int) -> None:
    """Let the workers go on for a moment; what is known so far can be read already."""
    if draft.deadline(DeadlineKind.CULPRIT, job.job_id) == due_ms:
        return
    draft.set_deadline(DeadlineKind.CULPRIT, job.job_id, due_ms)
    verdict = find_verdict(round)
    draft.put_job(replace(job, verdict=verdict))
    why = "" if verdict is None else verdict.text
    draft.changed(job.job_id, "culprit_awaited", round=round.header.number, why=why)


def stop(draft: Draft, job: Job, reason: RoundReason) -> None:
    """Stop the running round everywhere, at once; what it means is decided when all are clean."""
    round, now_ms, job_id = job.round, draft.now_ms, job.job_id
    assert round is not None and job.phase is Phase.RUNNING
    stopped = replace(round, stop_ms=now_ms, stop_reason=reason)
    draft.put_job(replace(job, phase=Phase.STOPPING, round=stopped, verdict=find_verdict(stopped)))
    draft.touch_all(job_id)
    timing = draft.state.timing
    draft.set_deadline(DeadlineKind.START, job_id, None)
    draft.set_deadline(DeadlineKind.GROWTH, job_id, None)
    draft.set_deadline(DeadlineKind.DRAIN, job_id, None)
    draft.set_deadline(DeadlineKind.CULPRIT, job_id, None)
    due_ms = now_ms + job.spec.grace_ms + timing.stop_slack_ms
    draft.set_deadline(DeadlineKind.STOP, job_id, due_ms)
    draft.records.append(RoundStopped(job_id, round.header.number, reason))
    found = draft.the_job(job_id).verdict
    why = reason.value if found is None else found.text
    draft.changed(job_id, "round_stopped", round=round.header.number, why=why)


def _stopping(draft: Draft, job: Job) -> bool:
    round, tally = job.round, draft.tally(job.job_id)
    assert round is not None
    if round.stop_reason in PLANNED and _has_succeeded(round, tally):
        close(draft, job, Outcome.SUCCEEDED, None)
        return False
    if tally.pending > 0:
        return False
    _settle(draft, job)
    return True


def _settle(draft: Draft, job: Job) -> None:
    """Decide what the stopped round means, now that nobody of it is on the way any more."""
    round, now_ms = job.round, draft.now_ms
    assert round is not None and round.stop_reason is not None
    judgement = judge(job, round, now_ms)
    job = replace(
        job,
        history=remember(job, round, judgement.reason),
        verdict=judgement.verdict or job.verdict,
        restart_count=judgement.restart_count,
        streak=judgement.streak,
        crash_signature=judgement.crash_signature,
        crash_repeats=judgement.crash_repeats,
        reformations=judgement.reformations,
        growths=judgement.growths,
        drains=judgement.drains,
        backoff_until_ms=now_ms + judgement.backoff_ms,
        next_reason=judgement.reason,
    )
    draft.records.append(
        RoundSettled(
            job_id=job.job_id,
            round=round.header.number,
            reason=judgement.reason,
            consequence=judgement.consequence,
            restart_count=job.restart_count,
            streak=job.streak,
            crash_signature=job.crash_signature,
            crash_repeats=job.crash_repeats,
            reformations=job.reformations,
            growths=job.growths,
            drains=job.drains,
            backoff_until_ms=job.backoff_until_ms,
        )
    )
    draft.set_deadline(DeadlineKind.STOP, job.job_id, None)
    draft.put_job(job)
    blame(draft, job, round, judgement.verdict)
    job = draft.the_job(job.job_id)
    if not judgement.goes_on:
        close(draft, job, Outcome.FAILED, judgement.verdict)
        return
    members = [node for node in draft.nodes_of(job.job_id) if node.member]
    for node in members:
        draft.put_node(node._replace(member=False, assignment=None))
    draft.put_job(
        replace(
            job,
            phase=Phase.FORMING,
            round=None,
            forming_since_ms=now_ms,
            first_ready_ms=None,
            last_arrival_ms=now_ms,
            trouble_ms=find_trouble_ms(round),
        )
    )
    for node in members:
        fence_unclean(draft, node)
    draft.changed(
        job.job_id,
        "round_settled",
        round=round.header.number,
        restarts=job.restart_count,
        pause_ms=judgement.backoff_ms,
    )


def remember(job: Job, round: Round, ended: RoundReason) -> tuple[RoundSummary, ...]:
    """Return the job's history with `round` added, the oldest dropped beyond the limit."""
    ended_ms = round.stop_ms if round.stop_ms is not None else round.sealed_ms
    header, started_ms = round.header, round.started_ms
    recovered_ms = None
    if started_ms is not None and round.trouble_ms is not None:
        recovered_ms = started_ms - round.trouble_ms
    summary = RoundSummary(
        number=header.number,
        began=header.reason,
        ended=ended,
        names=tuple(member.name for member in round.members[:NAMES_MAX]),
        group_world_size=header.group_world_size,
        world_size=header.world_size,
        restart_count=header.restart_count,
        started_after_ms=None if started_ms is None else started_ms - round.sealed_ms,
        lasted_ms=ended_ms - round.sealed_ms,
        recovered_after_ms=recovered_ms,
    )
    return (*job.history, summary)[-HISTORY_MAX:]


def close(draft: Draft, job: Job, outcome: Outcome, verdict: Verdict | None) -> None:
    """Give the run its outcome and tell every node."""
    job_id, now_ms, round = job.job_id, draft.now_ms, job.round
    history = job.history
    if round is not None and (not history or history[-1].number != round.header.number):
        reason = RoundReason.SUCCEEDED if outcome is Outcome.SUCCEEDED else RoundReason.CLOSED
        history = remember(job, replace(round, stop_ms=round.stop_ms or now_ms), reason)
    draft.put_job(
        replace(
            job,
            phase=Phase.CLOSED,
            outcome=outcome,
            verdict=verdict,
            closed_ms=now_ms,
            history=history,
            round=None,
        )
    )
    for node in draft.nodes_of(job_id):
        draft.put_node(node._replace(member=False, assignment=None))
    for kind in (
        DeadlineKind.FORMING,
        DeadlineKind.START,
        DeadlineKind.STOP,
        DeadlineKind.GROWTH,
        DeadlineKind.DRAIN,
        DeadlineKind.CULPRIT,
        DeadlineKind.ABANDON,
    ):
        draft.set_deadline(kind, job_id, None)
    draft.set_deadline(DeadlineKind.FORGET, job_id, now_ms + REMEMBERED_MS)
    draft.records.append(RunClosed(job_id, job.run, outcome, verdict))
    why = "" if verdict is None else verdict.text
    draft.changed(job_id, "run_closed", run=job.run, outcome=outcome.value, why=why)
