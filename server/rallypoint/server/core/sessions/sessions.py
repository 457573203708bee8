"""Nodes connect, disconnect, resume and leave.

Every input names its session and connection. An input from any connection but the newest is stale
and changes nothing. A node with a broken stream is not lost yet: it has a grace period to
reconnect. A silent node is lost when its lease ends, also if gRPC closes its connection before.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Disconnect, Refuse, Welcome
from rallypoint.server.core.messages.records import EpochRaised
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.network import note_break
from rallypoint.server.core.model.node import Identity, Node, NodeState
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.round import LOST_MAX, Departure, RoundReason
from rallypoint.server.core.rounds.drains import (
    begin_drain,
    end_drain_request,
    has_notices,
    notify,
    resume_drain_request,
)
from rallypoint.server.core.rounds.fences import fence_lost, fence_unclean, lift_fence
from rallypoint.server.core.rounds.settling import abandoned, close
from rallypoint.server.core.sessions.admission import (
    awaits_first_agent,
    check_identity,
    check_owner,
    check_resume,
    check_run,
    opens_run,
)
from rallypoint.server.core.sessions.exits import date_exits
from rallypoint.server.core.sessions.opening import open_run
from rallypoint.server.core.sessions.precedence import (
    displace_newcomers,
    is_newcomer,
    numbered_name,
)
from rallypoint.server.core.sessions.programs import find_other_arguments
from rallypoint.server.core.sessions.reports import (
    become_ready,
    depart,
    find_sender,
    merge_held,
    note_arrival,
    renew_lease,
)
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.verdicts.health import find_eligibility

KEEPALIVE_MS = 20_000
"""How long a peer may take to answer a ping before gRPC closes its connection."""
AHEAD = "its agent knows a later round than the journal, which is older than that"
"""Why a node has no place any more: the journal was restored from a backup."""


def receive_hello(draft: Draft, hello: inputs.Hello) -> Refusal | None:
    """Attach a node: new, resuming, or known to a former coordinator."""
    _raise_epoch(draft, hello)
    if hello.held is not None:  # its ages are those of now, also when it is adopted later
        exits = date_exits(draft, hello.held.exits)
        hello = replace(hello, held=replace(hello.held, exits=exits))
    known = draft.node(hello.identity.session)
    if known is not None:
        return _resume(draft, known, hello)
    refusal = check_owner(draft, hello)
    if refusal is None:
        displace_newcomers(draft, hello)
        refusal = check_run(draft, hello)
    if refusal is None:
        job = _open_if_needed(draft, hello)
        refusal = check_identity(draft, job, hello.identity)
        if refusal is None:
            _replace_holders(draft, hello.identity)
            _join(draft, job, hello)
    if refusal is not None:
        draft.effects.append(Refuse(hello.identity.session, hello.connection, refusal))
    return refusal


def _raise_epoch(draft: Draft, hello: inputs.Hello) -> None:
    """Raise the epoch above that of every coordinator that the agent knows."""
    is_other = hello.coordinator_id not in ("", draft.state.coordinator_id)
    if hello.epoch > draft.epoch or (hello.epoch == draft.epoch and is_other):
        draft.raise_epoch(hello.epoch + 1)
        draft.records.append(EpochRaised(hello.epoch + 1))


def _open_if_needed(draft: Draft, hello: inputs.Hello) -> Job:
    """Return the job that the agent joins, with a new run if it needs one."""
    identity = hello.identity
    job = draft.job(identity.job_id)
    if job is not None and not opens_run(draft, hello):
        return job
    if job is not None and job.phase is not Phase.CLOSED:
        close(draft, job, Outcome.ABANDONED, abandoned(job))
    return open_run(draft, identity.job_id, identity.spec, identity.launch_id, hello.run)


def _replace_holders(draft: Draft, identity: Identity) -> None:
    """Remove the disconnected nodes whose name or node rank the new node takes."""
    if identity.name_explicit:
        holder = draft.holder(identity.job_id, identity.name)
        if holder is not None:
            remove_node(draft, holder, RoundReason.NODE_LOST, "another agent took its name")
    if identity.node_rank is not None:
        holder = draft.holder(identity.job_id, identity.node_rank)
        if holder is not None:
            remove_node(draft, holder, RoundReason.NODE_LOST, "another agent took its node rank")


def _join(draft: Draft, job: Job, hello: inputs.Hello) -> None:
    """Add a node that this coordinator does not know."""
    node = _create_node(draft, job, hello)
    job = draft.require_job(job.job_id)
    if awaits_first_agent(job):
        job = _begin_created(draft, job, hello)
    job = replace(job, next_arrival=job.next_arrival + 1, empty_since_ms=None)
    if draft.awaits_adoption(job.job_id) and hello.run > job.run:
        job = _continue_run(draft, job, hello.run)
    draft.put_job(job)
    draft.set_deadline(DeadlineKind.ABANDON, job.job_id, None)
    draft.put_node(node)
    if hello.ready is not None:
        lift_fence(draft, node)
    elif node.held is None:
        fence_unclean(draft, node)
    note_arrival(draft, node)
    resume_drain_request(draft, node)
    if hello.draining is not None:
        begin_drain(draft, draft.require_node(node.session), *hello.draining)
    _welcome(draft, draft.require_node(node.session), job)
    draft.emit(job.job_id, "node_joined", node=node.name)
    other_name = find_other_arguments(draft, node)
    if other_name is not None:
        draft.emit(job.job_id, "other_arguments_found", node=node.name, other_node=other_name)


def _begin_created(draft: Draft, job: Job, hello: inputs.Hello) -> Job:
    """Return a run that waited for its first agent: it belongs to that agent's launch.

    The join timeout counts from now on. Until now it was the limit for the first agent.
    """
    job = replace(job, forming_since_ms=draft.now_ms)
    if job.launch_id != hello.identity.launch_id:
        job = replace(job, launch_id=hello.identity.launch_id)
    return job


def _create_node(draft: Draft, job: Job, hello: inputs.Hello) -> Node:
    """Return the new node with what its Hello says; a held round counts only in the window."""
    name = _free_name(draft, hello.identity)
    node = Node(
        identity=hello.identity,
        name=name,
        arrival=job.next_arrival,
        connection=hello.connection,
        acknowledged=hello.acknowledged,
        revision=hello.revision,
        eligibility=find_eligibility(job.health, name, draft.now_ms),
        known_addresses=hello.known_addresses,
        is_newcomer=is_newcomer(hello),
    )
    if hello.ready is not None:
        return replace(
            node,
            state=NodeState.READY,
            port=hello.ready.port,
            last_round=hello.ready.round,
        )
    if hello.held is not None:
        held = hello.held if draft.awaits_adoption(job.job_id) else None
        return replace(node, last_round=hello.held.header.number, held=held)
    return node


def _continue_run(draft: Draft, job: Job, run: int) -> Job:
    """Return the job in the later run of an agent, and inform the other agents."""
    job = replace(job, run=run, since_epoch=draft.epoch)
    for node in draft.nodes_of(job.job_id):
        # The others take part in this run too. The next coordinator learns that from them.
        draft.effects.append(Welcome(node.session, node.connection, node.name, job.run))
    return job


def _free_name(draft: Draft, identity: Identity) -> NodeName:
    """Return the node's name, with the lowest free number from 2 added if it is taken."""
    if draft.holder(identity.job_id, identity.name) is None:
        return identity.name
    assert not identity.name_explicit
    return numbered_name(draft, identity)


def _welcome(draft: Draft, node: Node, job: Job) -> None:
    draft.resend.add(node.session)
    draft.touched[node.session] = None
    other_name = find_other_arguments(draft, node)
    draft.effects.append(Welcome(node.session, node.connection, node.name, job.run, other_name))
    if has_notices(draft, node):
        notify(draft, node)
    renew_lease(draft, node)


def _resume(draft: Draft, node: Node, hello: inputs.Hello) -> Refusal | None:
    """Continue a session on a new connection."""
    session = node.session
    refusal = check_resume(node, hello)
    if refusal is not None:
        draft.effects.append(Refuse(session, hello.connection, refusal))
        return refusal
    node = replace(
        node,
        connection=hello.connection,
        attached=True,
        broke_ms=None,
        missed_ms=None,
        known_addresses=hello.known_addresses,
        is_heard=node.is_heard or hello.is_proven,
        acknowledged=max(node.acknowledged, hello.acknowledged),
        revision=max(node.revision, hello.revision),
    )
    if node.held is not None or (not node.member and draft.awaits_adoption(node.job_id)):
        node = replace(node, held=hello.held)
    elif _highest_round(hello) > node.last_round:
        node = _catch_up(draft, node, _highest_round(hello))
    draft.put_node(node)
    draft.set_deadline(DeadlineKind.GRACE, session, None)
    if hello.ready is not None:
        become_ready(draft, node, hello.ready)
    elif hello.held is not None and node.member and node.state is not NodeState.READY:
        # A node that is ready has let go of its round. Its Hello names the round until it knows
        # that the exits are recorded, and a Ready that is recorded does not come again.
        if hello.held.header.number == node.last_round:
            merge_held(draft, session, hello.held)
    if hello.draining is not None:
        begin_drain(draft, draft.require_node(session), *hello.draining)
    _welcome(draft, draft.require_node(session), draft.require_job(node.job_id))
    draft.emit(node.job_id, "node_resumed", node=node.name)
    return None


def _highest_round(hello: inputs.Hello) -> int:
    """Return the highest round that the agent knows; 0 for none."""
    if hello.held is not None:
        return hello.held.header.number
    return 0 if hello.ready is None else hello.ready.round


def _catch_up(draft: Draft, node: Node, number: int) -> Node:
    """Return a node whose agent is ahead of the journal, which was restored from a backup.

    Its place was in an earlier round than the one that it runs, so both are over for it.
    """
    depart(draft, node, RoundReason.NODE_LOST, AHEAD)
    return replace(
        node,
        state=NodeState.UNREADY,
        member=False,
        assignment=None,
        last_round=number,
        pids=(),
        exits=(),
        still_since_ms=None,
    )


def note_broken_stream(draft: Draft, sender: inputs.Sender, *, is_relay: bool) -> Refusal | None:
    """Begin the grace period of a node whose stream ended; the node is not lost yet.

    It lasts a whole lease when the relay is gone that carried the stream, and the rest of the lease
    when the node was silent for so long that keepalive has closed the connection. Neither break
    says anything about the network of other nodes. A job that is over does not wait for them.
    """
    node = find_sender(draft, sender)
    if isinstance(node, Refusal):
        return node
    if node.attached:
        broke_ms, return_by_ms = draft.now_ms, draft.now_ms + draft.state.timing.reconnect_grace_ms
        is_closed = draft.require_job(node.job_id).phase is Phase.CLOSED
        is_silent = _is_closed_by_keepalive(draft, node)
        if is_silent:
            broke_ms -= draft.state.silent_ms(node, draft.now_ms)  # when its last message arrived
        if (is_relay or is_silent) and not is_closed:
            return_by_ms = max(return_by_ms, broke_ms + draft.state.return_ms(node.identity.spec))
        draft.put_node(replace(node, attached=False, broke_ms=broke_ms))
        draft.set_deadline(DeadlineKind.LEASE, node.session, None)
        draft.set_deadline(DeadlineKind.GRACE, node.session, return_by_ms)
        draft.emit(node.job_id, "node_disconnected", node=node.name)
        if not is_relay and not is_silent:
            _note_break(draft, node)
    return None


def _is_closed_by_keepalive(draft: Draft, node: Node) -> bool:
    """Return whether the stream of a node broke because nothing had come for long.

    A node whose heartbeats are further apart than that is not silent: its process has ended.
    """
    beats_ms = 2 * draft.state.heartbeat_ms(node.identity.spec)
    return draft.state.silent_ms(node, draft.now_ms) >= max(KEEPALIVE_MS, beats_ms)


def _note_break(draft: Draft, node: Node) -> None:
    """Count the break; while the network is suspected, a grace period lasts a whole lease."""
    now_ms, lease_ms = draft.now_ms, draft.state.own_lease_ms()
    job, sessions = draft.require_job(node.job_id), draft.tally(node.job_id).nodes
    was_suspected = draft.is_network_suspected(job)
    is_one = node.is_heard and job.breaks.is_quiet(now_ms)
    if is_one:  # a job counts once, however many of its streams break
        draft.put_network(note_break(draft.network, _count_jobs(draft), now_ms, lease_ms))
    job = replace(job, breaks=note_break(job.breaks, sessions, now_ms, lease_ms))
    draft.put_job(job)
    if draft.is_network_suspected(job) and not was_suspected:
        breaks = job.breaks.breaks()
        draft.emit(node.job_id, "network_suspected", breaks=breaks, sessions=sessions)


def _count_jobs(draft: Draft) -> int:
    """Return the number of jobs with sessions."""
    return sum(1 for sessions in draft.state.sessions.values() if sessions)


def remove_node(draft: Draft, node: Node, reason: RoundReason, text: str) -> None:
    """Remove a node; its round ends unless the node had succeeded."""
    is_lost = reason is RoundReason.NODE_LOST
    if not is_lost:
        end_drain_request(draft, node)
    if node.drain is not None:
        why = node.drain.reason
        reason, text = RoundReason.DRAINED, why if why in text else f"{why}; {text}"
    is_stopped = draft.require_job(node.job_id).phase is Phase.STOPPING
    is_drained = reason is RoundReason.DRAINED and not is_lost
    if not (is_drained and is_stopped) or node.state is NodeState.SUCCEEDED:
        # A drained node that leaves after the stop explains nothing. If its workers had ended by
        # themselves, an earlier Leaving would have reported it.
        depart(draft, node, reason, text)
    if is_lost:
        fence_lost(draft, node)
    else:
        lift_fence(draft, node)
    draft.remove_node(node)
    draft.effects.append(Disconnect(node.session, has_left=not is_lost))
    job = draft.require_job(node.job_id)
    at_ms = draft.now_ms if node.broke_ms is None else node.broke_ms
    # The round records a drained node, the run a lost node that may return.
    departure = Departure(
        node.name,
        at_ms,
        RoundReason.NODE_LOST if is_lost else reason,
        text,
        has_finished=not is_lost and job.phase is Phase.CLOSED,
    )
    draft.put_job(replace(job, lost=_limit_departures((*job.lost, departure))))
    event = "node_lost" if is_lost else "node_left"
    also = (
        ("departure", departure.reason.value),
        ("has_finished", int(departure.has_finished)),
    )
    draft.emit(job.job_id, event, also, node=node.name, why=text)


def _limit_departures(departures: tuple[Departure, ...]) -> tuple[Departure, ...]:
    """Forget what is over the limit: first nodes that know how their run has ended, the oldest."""
    if len(departures) <= LOST_MAX:
        return departures
    told = next((one.name for one in departures if one.has_finished), None)
    if told is None:
        return departures[1:]
    return tuple(one for one in departures if one.name != told)
