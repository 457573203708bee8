"""The reports of nodes, recorded as facts; `rounds.advance` decides what follows.

Every report is applied once and in order. A repeated report is acknowledged again and changes
nothing. A report after a gap ends the connection, so the agent sends everything again. A report
about a round other than the node's current one is ignored.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Acknowledge, Refuse
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.ids import NodeName, SessionId
from rallypoint.server.core.model.node import HeldRound, Node, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import (
    LOST_MAX,
    Departure,
    Milestone,
    Round,
    RoundReason,
)
from rallypoint.server.core.model.worker import Symptom
from rallypoint.server.core.rounds.drains import (
    begin_drain,
    reason_of_leaving,
    without_drain_of,
)
from rallypoint.server.core.rounds.fences import lift_fence
from rallypoint.server.core.rounds.timelines import with_milestones
from rallypoint.server.core.sessions.exits import put_round, register_exits, update_held_exits
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.verdicts.health import note_failure

RoundReport = (
    inputs.Started
    | inputs.Reached
    | inputs.Progress
    | inputs.StartFailed
    | inputs.Recorded
    | inputs.Exited
    | inputs.Succeeded
    | inputs.Leaving
)
"""The reports about one round that a member or another holder of it sends."""


def renew_lease(draft: Draft, node: Node) -> None:
    """Renew the lease of a node that has just sent something."""
    ends_ms = draft.now_ms + draft.state.lease_ms(node.identity.spec)
    draft.set_deadline(DeadlineKind.LEASE, node.session, ends_ms)


def find_sender(draft: Draft, sender: inputs.Sender) -> Node | Refusal:
    """Return the node that sends, or the refusal when its session or connection is stale."""
    node = draft.node(sender.session)
    if node is None:
        return Refusal(RefusalKind.UNKNOWN_SESSION, (("session", sender.session),))
    if sender.connection != node.connection:
        return refuse_stale(RefusalKind.STALE_CONNECTION, node.connection, sender.connection)
    return node


def refuse_stale(kind: RefusalKind, expected: int, actual: int) -> Refusal:
    """Return the refusal of an input from an earlier connection, epoch or run."""
    return Refusal(kind, (("what", _STALE[kind]), ("expected", expected), ("actual", actual)))


_STALE = {
    RefusalKind.STALE_CONNECTION: "connection",
    RefusalKind.STALE_EPOCH: "epoch",
    RefusalKind.NEWER_EPOCH: "epoch",
    RefusalKind.OLD_RUN: "run",
}


def receive_heartbeat(draft: Draft, heartbeat: inputs.Heartbeat) -> Refusal | None:
    """Renew the sender's lease; note the first sign that its Welcome has arrived."""
    node = find_sender(draft, heartbeat.sender)
    if isinstance(node, Refusal):
        return node
    newer = _refuse_newer_epoch(draft, heartbeat.sender)
    if newer is None:
        renew_lease(draft, node)
        if not node.is_heard:
            draft.put_node(replace(node, is_heard=True))
    return newer


def _refuse_newer_epoch(draft: Draft, sender: inputs.Sender) -> Refusal | None:
    """Refuse a message for a coordinator that came after this one: this one must not decide.

    The agent says Hello again, which raises the epoch. A journal that several coordinators share
    would tell whether this one was replaced; without one, a stranger's message must not end it.
    """
    if sender.epoch <= draft.epoch:
        return None
    refusal = refuse_stale(RefusalKind.NEWER_EPOCH, draft.epoch, sender.epoch)
    draft.effects.append(Refuse(sender.session, sender.connection, refusal))
    return refusal


def receive_report(draft: Draft, report: inputs.Report) -> Refusal | None:
    """Apply one numbered report, exactly once and in order."""
    sender = report.sender
    node = find_sender(draft, sender)
    if isinstance(node, Refusal):
        return node
    if sender.epoch < draft.state.first_epoch:
        refusal = refuse_stale(RefusalKind.STALE_EPOCH, draft.epoch, sender.epoch)
        draft.effects.append(Refuse(sender.session, sender.connection, refusal))
        return refusal
    newer = _refuse_newer_epoch(draft, sender)
    if newer is not None:
        return newer
    renew_lease(draft, node)
    if sender.sequence > node.acknowledged + 1:
        facts = (("expected", node.acknowledged + 1), ("actual", sender.sequence))
        refusal = Refusal(RefusalKind.SEQUENCE_GAP, facts)
        draft.effects.append(Refuse(sender.session, sender.connection, refusal))
        return refusal
    if sender.sequence <= node.acknowledged:
        draft.effects.append(Acknowledge(sender.session, node.acknowledged))
        return None
    node = replace(node, acknowledged=sender.sequence, is_heard=True)
    draft.put_node(node)
    draft.effects.append(Acknowledge(sender.session, sender.sequence))
    _apply_report(draft, node, report)
    return None


def _apply_report(draft: Draft, node: Node, report: inputs.Report) -> None:
    """Apply a report, unless it is about a round other than the node's current one."""
    match report:
        case inputs.Ready(ready=ready):
            # No node can have been ordered to run a round that does not exist yet.
            known = max(node.last_round, draft.require_job(node.job_id).round_number)
            become_ready(draft, node, replace(ready, round=min(ready.round, known)))
        case inputs.Draining(time_ms=time_ms, reason=reason):
            begin_drain(draft, node, time_ms, reason or "the node wants to leave")
        case inputs.Goodbye(text=text):
            draft.leaving.append((node.session, text or "its agent shut down"))
        case inputs.NewerReport():
            pass
        case inputs.Blocked(round=number, text=text):
            if number == node.last_round:
                note_blocked(draft, node, text)
        case _ if report.round != node.last_round:
            pass  # stale
        case _ if node.member:
            _apply_member_report(draft, node, report)
        case _ if node.held is not None:
            draft.put_node(replace(node, held=update_held(draft, node.held, report)))


def _apply_member_report(draft: Draft, node: Node, report: RoundReport) -> None:
    """Apply a report about the current round of a member."""
    match report:
        case inputs.Started(pids=pids):
            is_news = node.state is NodeState.ASSIGNED
            state = NodeState.STARTED if is_news else node.state
            draft.put_node(replace(node, state=state, pids=pids))
        case inputs.Reached(milestones=milestones):
            note_milestones(draft, node, milestones)
        case inputs.Progress(still_ms=still_ms):
            draft.put_node(replace(node, still_since_ms=_still_since_ms(draft, still_ms)))
        case inputs.Recorded(exits=exits) | inputs.Exited(exits=exits):
            register_exits(draft, node.session, exits)
        case inputs.Succeeded():
            mark_succeeded(draft, node)
        case inputs.Leaving() if node.state is NodeState.SUCCEEDED:
            pass  # it counts as succeeded until it is removed
        case inputs.Leaving(text=text):
            text = node.drain.reason if node.drain is not None else text
            depart(draft, node, reason_of_leaving(node), text or "its agent is shutting down")
        case inputs.StartFailed(text=text, is_permanent=is_permanent):
            mark_start_failed(draft, node, text, is_permanent=is_permanent)


def update_held(draft: Draft, held: HeldRound, report: RoundReport) -> HeldRound:
    """Return the held round after a report that came before the round could be adopted.

    Reports after a Hello can be older than the held round in it: they add to it and undo nothing.
    """
    match report:
        case inputs.Started(pids=pids):
            is_news = held.state is NodeState.ASSIGNED
            state = NodeState.STARTED if is_news else held.state
            return replace(held, state=state, pids=pids)
        case inputs.Recorded(exits=exits) | inputs.Exited(exits=exits):
            return update_held_exits(draft, held, exits)
        case inputs.Reached():
            return held  # an adopted round has no timeline
        case inputs.Progress(still_ms=still_ms):
            return replace(held, still_ms=still_ms)
        case inputs.Succeeded():
            return replace(held, state=NodeState.SUCCEEDED)
        case inputs.StartFailed() | inputs.Leaving():
            has_succeeded = held.state is NodeState.SUCCEEDED
            return held if has_succeeded else replace(held, state=NodeState.UNREADY)


def merge_held(draft: Draft, session: SessionId, held: HeldRound) -> None:
    """Apply what a member's Hello says about the round that the member holds."""
    node = draft.require_node(session)
    still_since_ms = _still_since_ms(draft, held.still_ms)
    draft.put_node(replace(node, pids=held.pids or node.pids, still_since_ms=still_since_ms))
    note_milestones(draft, node, held.milestones)
    register_exits(draft, session, held.exits)
    node = draft.require_node(session)
    if held.state is NodeState.SUCCEEDED:
        mark_succeeded(draft, node)
    elif held.state is NodeState.FAILED and not any(exit.is_failure for exit in held.exits):
        # A former coordinator may have lost the report that a worker could not start.
        mark_start_failed(draft, node, held.start_failure or "it could not start its workers")
    elif node.state not in (NodeState.FAILED, NodeState.SUCCEEDED):
        draft.put_node(replace(node, state=held.state))
        if (
            held.state in (NodeState.UNREADY, NodeState.BLOCKED)
            and draft.require_job(node.job_id).phase is Phase.RUNNING
        ):
            # The time of its drain may have passed while no coordinator could hear it.
            why = "it stopped its workers by itself"
            text = why if node.drain is None else f"{node.drain.reason}; {why}"
            depart(draft, node, reason_of_leaving(node), text)


def _still_since_ms(draft: Draft, still_ms: int | None) -> int | None:
    return None if still_ms is None else draft.now_ms - still_ms


def note_milestones(
    draft: Draft, node: Node, milestones: tuple[tuple[Milestone, int], ...]
) -> None:
    """Note in the running round what all workers of a member have reached."""
    job = draft.require_job(node.job_id)
    if job.phase is not Phase.RUNNING or job.round is None or node.assignment is None:
        return
    round = with_milestones(job.round, node.assignment, milestones, draft.now_ms)
    if round is not job.round:
        draft.put_job(replace(job, round=round))


def mark_succeeded(draft: Draft, node: Node) -> None:
    """Note that all workers of a member exited with 0.

    An agent repeats the report to a coordinator that has started again: it counts once.
    """
    job = draft.require_job(node.job_id)
    if node.state is NodeState.SUCCEEDED or job.round is None:
        return
    if node.name in job.round.succeeded_gone:
        return
    draft.put_node(replace(node, state=NodeState.SUCCEEDED))
    if not job.round.any_finished or node.drain is not None:
        round = replace(job.round, any_finished=True)
        if node.drain is not None and round.stop_ms is None:
            # The success was already under way when the drain began.
            round = without_drain_of(draft, round, node)
        draft.put_job(replace(job, round=round))


def mark_start_failed(draft: Draft, node: Node, text: str, *, is_permanent: bool = False) -> None:
    """Note that a member could not start its workers; it is a cause only before the stop."""
    job = draft.require_job(node.job_id)
    if job.round is not None and job.phase is Phase.RUNNING and job.round.start_failure is None:
        round = replace(job.round, start_failure=(node.name, text, is_permanent))
        draft.put_job(replace(job, round=round))
    draft.put_node(replace(node, state=NodeState.FAILED))


def note_blocked(draft: Draft, node: Node, text: str) -> None:
    """Note that a node cannot become clean, or with a text, what else keeps it from its next round.

    Either way no round has it until it is READY again. A round that runs does not continue with a
    member that is kept from it. A stop still waits for such a member, because its workers may still
    end in time.
    """
    if not text or draft.require_job(node.job_id).phase is Phase.RUNNING:
        become_blocked(draft, node, text)
        return
    state = NodeState.UNREADY if node.state is NodeState.READY else node.state
    draft.put_node(replace(node, state=state, hindrance=text))


def become_blocked(draft: Draft, node: Node, text: str = "") -> None:
    """Note that a node cannot become clean; a member that has succeeded keeps its success.

    An agent repeats the report to a coordinator that has started again: it counts once.
    """
    number, why = node.last_round, text or "its processes survived SIGKILL"
    blocked = replace(node, state=NodeState.BLOCKED, set_aside=True, blocked_round=number)
    draft.put_node(replace(blocked, hindrance=text))
    if node.blocked_round < number:
        note_failure(draft, node.job_id, node.name, why)
    phase = draft.require_job(node.job_id).phase
    if phase is Phase.RUNNING or node.state is NodeState.SUCCEEDED:
        depart(draft, node, RoundReason.NODE_LEFT, why)


def become_ready(draft: Draft, node: Node, ready: inputs.ReadyPort) -> None:
    """Note that a node is clean, unless the report is older than its place in the round.

    A member that has succeeded keeps its success.
    """
    if ready.round < node.last_round:
        return
    lift_fence(draft, node)
    job = draft.require_job(node.job_id)
    was_clean = node.is_clean
    draft.put_node(
        replace(
            node,
            state=NodeState.READY,
            port=ready.port,
            last_round=node.last_round if node.member else ready.round,
            set_aside=False,
            hindrance="",
            held=None,
        )
    )
    if node.member:
        if job.phase is Phase.RUNNING or node.state is NodeState.SUCCEEDED:
            depart(draft, node, RoundReason.NODE_LEFT, "it stopped its workers by itself")
    elif not was_clean:
        note_arrival(draft, node)


def note_arrival(draft: Draft, node: Node) -> None:
    """Restart the timers that an arrival restarts."""
    job, now_ms = draft.require_job(node.job_id), draft.now_ms
    first_ms = now_ms if job.first_newcomer_ms is None else job.first_newcomer_ms
    draft.put_job(replace(job, last_arrival_ms=now_ms, first_newcomer_ms=first_ms))


def depart(draft: Draft, node: Node, reason: RoundReason, text: str) -> None:
    """Note in the round that a member is gone.

    A member that has succeeded keeps its success. A member that was clean when it was lost, or left
    as announced, did not end the round. No journal knows who is clean: a member that never returns
    to a coordinator that has started again did not end a round in which a worker shows a cause.
    """
    job = draft.require_job(node.job_id)
    round = job.round
    if not node.member or round is None or node.name in round.succeeded_gone:
        return
    if node.state is NodeState.SUCCEEDED:
        round = replace(round, succeeded_gone=(*round.succeeded_gone, node.name))
    elif node.state is NodeState.READY and reason is not RoundReason.NODE_LEFT:
        return
    elif node.is_awaited and job.phase is Phase.STOPPING and _has_cause(round):
        return
    elif len(round.departures) >= LOST_MAX:
        round = replace(round, unlisted_departures=round.unlisted_departures + 1)
    elif not _has_departed(round, node.name):
        at_ms = draft.now_ms if node.broke_ms is None else node.broke_ms
        departure = Departure(node.name, at_ms, reason, text)
        round = replace(round, departures=(*round.departures, departure))
    put_round(draft, job, round)


def _has_cause(round: Round) -> bool:
    return any(failed.symptom is not Symptom.VICTIM for failed in round.failures)


def _has_departed(round: Round, name: NodeName) -> bool:
    return any(departure.name == name for departure in round.departures)
