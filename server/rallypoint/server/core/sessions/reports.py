"""What nodes report of themselves, taken as facts; `rounds.advance` decides what follows.

A report is taken once and in order: one that was taken already is acknowledged again and changes
nothing; one from the future means that something is missing, and ends the connection, so that the
agent sends everything again. A report about another round than the node's current one is old news.
"""

from __future__ import annotations

from dataclasses import replace

from rallypoint.server.core import inputs
from rallypoint.server.core.blame import find_verdict, with_failure
from rallypoint.server.core.deadlines import DeadlineKind
from rallypoint.server.core.drains import (
    begin_drain,
    note_first_exit,
    reason_of_leaving,
    without_drain_of,
)
from rallypoint.server.core.effects import (
    Acknowledge,
    NodeSucceeded,
    Refusal,
    RefusalKind,
    Refuse,
)
from rallypoint.server.core.fences import lift_fence
from rallypoint.server.core.health import note_failure
from rallypoint.server.core.model import (
    LOST_MAX,
    Activity,
    Departure,
    FailedWorker,
    Job,
    NodeName,
    Phase,
    Round,
    RoundReason,
    SessionId,
    WorkerExit,
)
from rallypoint.server.core.node import Claim, Node
from rallypoint.server.core.state import Draft


def hear(draft: Draft, node: Node) -> None:
    """Renew the lease of a node that has just spoken."""
    ends_ms = draft.now_ms + draft.state.lease_ms(node.identity.spec)
    draft.set_deadline(DeadlineKind.LEASE, node.session, ends_ms)


def speaker(draft: Draft, sender: inputs.Sender) -> Node | Refusal:
    """Return the node that speaks, or why nothing on this connection counts any more."""
    node = draft.node(sender.session)
    if node is None:
        return Refusal(RefusalKind.UNKNOWN_SESSION, (("session", sender.session),))
    if sender.connection != node.connection:
        return stale("connection", node.connection, sender.connection)
    return node


def stale(what: str, expected: int, actual: int) -> Refusal:
    """Return the refusal of something that comes from an earlier connection, epoch or run."""
    kinds = {
        "connection": RefusalKind.STALE_CONNECTION,
        "epoch": RefusalKind.STALE_EPOCH,
        "run": RefusalKind.OLD_RUN,
    }
    return Refusal(kinds[what], (("what", what), ("expected", expected), ("actual", actual)))


def heartbeat(draft: Draft, said: inputs.Heartbeat) -> Refusal | None:
    """Renew a lease; nothing else is touched."""
    node = speaker(draft, said.sender)
    if isinstance(node, Refusal):
        return node
    hear(draft, node)
    return None


def report(draft: Draft, said: inputs.Report) -> Refusal | None:
    """Take one numbered report, exactly once and in order."""
    sender = said.sender
    node = speaker(draft, sender)
    if isinstance(node, Refusal):
        return node
    if sender.epoch < draft.state.first_epoch:
        refusal = stale("epoch", draft.epoch, sender.epoch)
        draft.effects.append(Refuse(sender.session, sender.connection, refusal))
        return refusal
    hear(draft, node)
    if sender.sequence > node.acknowledged + 1:
        facts = (("expected", node.acknowledged + 1), ("actual", sender.sequence))
        refusal = Refusal(RefusalKind.SEQUENCE_GAP, facts)
        draft.effects.append(Refuse(sender.session, sender.connection, refusal))
        return refusal
    if sender.sequence <= node.acknowledged:
        draft.effects.append(Acknowledge(sender.session, node.acknowledged))
        return None
    node = node._replace(acknowledged=sender.sequence)
    draft.put_node(node)
    draft.effects.append(Acknowledge(sender.session, sender.sequence))
    _take(draft, node, said)
    return None


def _take(draft: Draft, node: Node, said: inputs.Report) -> None:
    """Change the facts that a report is about, if it is about the node's current round."""
    match said:
        case inputs.Ready(ready=ready):
            become_ready(draft, node, ready)
        case inputs.Draining(time_ms=time_ms, reason=reason):
            begin_drain(draft, node, time_ms, reason or "the node wants to leave")
        case inputs.Goodbye(text=text):
            draft.leaving.append((node.session, text or "it said goodbye"))
        case inputs.Blocked(round=number):
            if number == node.held_round:
                become_blocked(draft, node)
        case _ if said.round != node.held_round:
            pass  # old news
        case _ if node.member:
            _take_of_member(draft, node, said)
        case _ if node.claim is not None:
            draft.put_node(node._replace(claim=update_claim(node.claim, said)))


def _take_of_member(
    draft: Draft,
    node: Node,
    said: inputs.Started | inputs.Exited | inputs.Succeeded | inputs.Refused,
) -> None:
    match said:
        case inputs.Started(pids=pids):
            is_news = node.activity is Activity.ASSIGNED
            activity = Activity.STARTED if is_news else node.activity
            draft.put_node(node._replace(activity=activity, pids=pids))
        case inputs.Exited(exits=exits):
            register_exits(draft, node.session, exits)
        case inputs.Succeeded():
            mark_succeeded(draft, node)
        case inputs.Refused(leaving=True) if node.activity is Activity.SUCCEEDED:
            pass  # its part is done; it counts as a member that succeeded until it is gone
        case inputs.Refused(leaving=True, text=text):
            words = node.drain.reason if node.drain is not None else text
            depart(draft, node, reason_of_leaving(node), words or "it is leaving")
        case inputs.Refused(text=text):
            mark_refused(draft, node, text)


def update_claim(
    claim: Claim, said: inputs.Started | inputs.Exited | inputs.Succeeded | inputs.Refused
) -> Claim:
    """Return the claim with what the node reported before its round could be adopted.

    The reports that follow a Hello may be older than what it said: they add, and take nothing back.
    """
    match said:
        case inputs.Started(pids=pids):
            is_news = claim.activity is Activity.ASSIGNED
            activity = Activity.STARTED if is_news else claim.activity
            return replace(claim, activity=activity, pids=pids)
        case inputs.Exited(exits=exits):
            known = {exit.local_rank for exit in claim.exits}
            fresh = tuple(exit for exit in exits if exit.local_rank not in known)
            failed = any(exit.is_failure for exit in fresh)
            activity = Activity.FAILED if failed else claim.activity
            return replace(claim, activity=activity, exits=claim.exits + fresh)
        case inputs.Succeeded():
            return replace(claim, activity=Activity.SUCCEEDED)
        case inputs.Refused():
            has_succeeded = claim.activity is Activity.SUCCEEDED
            return claim if has_succeeded else replace(claim, activity=Activity.UNREADY)


def take_claim(draft: Draft, session: SessionId, claim: Claim) -> None:
    """Merge what a member says of the round that both sides know it to hold."""
    node = draft.the_node(session)
    draft.put_node(node._replace(pids=claim.pids or node.pids))
    register_exits(draft, session, claim.exits)
    node = draft.the_node(session)
    if claim.activity is Activity.SUCCEEDED:
        mark_succeeded(draft, node)
    elif claim.activity is Activity.FAILED and not any(exit.is_failure for exit in claim.exits):
        # Its report that a worker could not be started may have gone down with a coordinator.
        said = next((exit.stderr_tail for exit in claim.exits if exit.stderr_tail), "")
        mark_refused(draft, node, said or "it could not start its workers")
    elif node.activity not in (Activity.FAILED, Activity.SUCCEEDED):
        draft.put_node(node._replace(activity=claim.activity))
        if (
            claim.activity in (Activity.UNREADY, Activity.BLOCKED)
            and draft.the_job(node.job_id).phase is Phase.RUNNING
        ):
            depart(draft, node, RoundReason.NODE_LEFT, "it stopped its workers by itself")


def register_exits(draft: Draft, session: SessionId, exits: tuple[WorkerExit, ...]) -> None:
    """Note how workers of a member ended, each once."""
    node = draft.the_node(session)
    job = draft.the_job(node.job_id)
    round = job.round
    known = {exit.local_rank for exit in node.exits}
    fresh = tuple(exit for exit in exits if exit.local_rank not in known)
    if not fresh or round is None or node.assignment is None:
        return
    failed = [exit for exit in fresh if exit.is_failure]
    activity = Activity.FAILED if failed else node.activity
    round = note_first_exit(round, node, draft.now_ms)
    draft.put_node(node._replace(exits=node.exits + fresh, activity=activity))
    any_finished = round.any_finished or any(exit.exit_code == 0 for exit in fresh)
    round = replace(round, any_finished=any_finished)
    for exit in failed:
        rank = node.assignment.first_rank + exit.local_rank
        failed_worker = FailedWorker(node.name, rank, exit, host=node.identity.host_name)
        round = with_failure(round, failed_worker, draft.now_ms)
    _put_round(draft, job, round)


def _put_round(draft: Draft, job: Job, round: Round) -> None:
    """Put the round with what was learned of it; while it is stopped the finding follows."""
    # What fails while newcomers are taken in was not what ended the round.
    is_found = round.stop_reason is not RoundReason.GROWTH or round.departures
    is_open = job.phase is Phase.STOPPING and is_found
    verdict = find_verdict(round) if is_open else job.verdict
    draft.put_job(replace(job, round=round, verdict=verdict))
    if verdict is not None and (job.verdict is None or verdict.text != job.verdict.text):
        draft.changed(job.job_id, "verdict_corrected", round=round.header.number, why=verdict.text)


def mark_succeeded(draft: Draft, node: Node) -> None:
    """Note that every worker of a member ended with 0."""
    job = draft.the_job(node.job_id)
    if node.activity is Activity.SUCCEEDED or job.round is None:
        return
    draft.put_node(node._replace(activity=Activity.SUCCEEDED))
    if not job.round.any_finished or node.drain is not None:
        round = replace(job.round, any_finished=True)
        if node.drain is not None and round.stop_ms is None:
            # Its success had been on its way when it was asked.
            round = without_drain_of(draft, round, node)
        draft.put_job(replace(job, round=round))
    draft.records.append(NodeSucceeded(job.job_id, node.held_round, node.name))


def mark_refused(draft: Draft, node: Node, text: str) -> None:
    """Note that a member could not start its workers; once the round is stopped, nobody should."""
    job = draft.the_job(node.job_id)
    if job.round is not None and job.phase is Phase.RUNNING and job.round.refusal is None:
        draft.put_job(replace(job, round=replace(job.round, refusal=(node.name, text))))
    draft.put_node(node._replace(activity=Activity.FAILED))


def become_blocked(draft: Draft, node: Node) -> None:
    """Note that a node cannot become clean; a member that had succeeded keeps its success."""
    draft.put_node(node._replace(activity=Activity.BLOCKED, set_aside=True))
    note_failure(draft, node.job_id, node.name, "its processes survived SIGKILL")
    phase = draft.the_job(node.job_id).phase
    if phase is Phase.RUNNING or node.activity is Activity.SUCCEEDED:
        depart(draft, node, RoundReason.NODE_LEFT, "its processes survived SIGKILL")


def become_ready(draft: Draft, node: Node, ready: inputs.ReadyPort) -> None:
    """Note that a node is clean, unless what it says is older than its place in the round.

    A member that had succeeded keeps its success.
    """
    if ready.round < node.held_round:
        return
    lift_fence(draft, node)
    job = draft.the_job(node.job_id)
    was_clean = node.is_clean
    draft.put_node(
        node._replace(
            activity=Activity.READY,
            port=ready.port,
            held_round=node.held_round if node.member else ready.round,
            set_aside=False,
            claim=None,
        )
    )
    if node.member:
        if job.phase is Phase.RUNNING or node.activity is Activity.SUCCEEDED:
            depart(draft, node, RoundReason.NODE_LEFT, "it dropped its workers by itself")
    elif not was_clean:
        note_arrival(draft, node)


def note_arrival(draft: Draft, node: Node) -> None:
    """Renew the waits that an arrival renews."""
    job, now_ms = draft.the_job(node.job_id), draft.now_ms
    first_ms = now_ms if job.first_newcomer_ms is None else job.first_newcomer_ms
    draft.put_job(
        replace(
            job,
            last_arrival_ms=now_ms,
            first_newcomer_ms=first_ms,
        )
    )


def depart(draft: Draft, node: Node, reason: RoundReason, text: str) -> None:
    """Note in the round that a member is no longer part of it, unless it had succeeded.

    A member that was clean already when it was lost, or could go as it had announced, has nothing
    to do with how its round ended.
    """
    job = draft.the_job(node.job_id)
    round = job.round
    if not node.member or round is None or node.name in round.succeeded_gone:
        return
    if node.activity is Activity.SUCCEEDED:
        round = replace(round, succeeded_gone=(*round.succeeded_gone, node.name))
    elif node.activity is Activity.READY and reason is not RoundReason.NODE_LEFT:
        return
    elif len(round.departures) < LOST_MAX and not _has_departed(round, node.name):
        at_ms = draft.now_ms if node.broke_ms is None else node.broke_ms
        departure = Departure(node.name, at_ms, reason, text)
        round = replace(round, departures=(*round.departures, departure))
    _put_round(draft, job, round)


def _has_departed(round: Round, name: NodeName) -> bool:
    return any(departure.name == name for departure in round.departures)
