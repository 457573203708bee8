"""Nodes come, break off, come back and go.

Every input names its session and connection; a connection number that is not the newest is old news
and changes nothing. A stream that breaks is not yet a death: the node has a grace to come back. A
silent one is lost when its lease ends.
"""

from __future__ import annotations

from dataclasses import fields, replace

from rallypoint.server.core import inputs
from rallypoint.server.core.deadlines import DeadlineKind
from rallypoint.server.core.drains import ask_again, begin_drain, end_drain, has_notices, notify
from rallypoint.server.core.effects import (
    Disconnect,
    EpochRaised,
    JobForgotten,
    Refusal,
    RefusalKind,
    Refuse,
    Welcome,
    run_opened,
)
from rallypoint.server.core.fences import SLACK_MS, fence_lost, fence_unclean, lift_fence
from rallypoint.server.core.health import find_bar
from rallypoint.server.core.model import (
    JOBS_MAX,
    LOST_MAX,
    NODES_PER_JOB_MAX,
    Activity,
    Departure,
    Job,
    JobSpec,
    NodeName,
    Phase,
    RoundReason,
)
from rallypoint.server.core.node import Identity, Node
from rallypoint.server.core.path import note_break
from rallypoint.server.core.reports import (
    become_ready,
    depart,
    hear,
    note_arrival,
    speaker,
    stale,
    take_claim,
)
from rallypoint.server.core.state import Draft


def hello(draft: Draft, said: inputs.Hello) -> Refusal | None:
    """Attach a node: a new one, one that comes back, or one that a former coordinator knew."""
    _raise_epoch(draft, said)
    known = draft.node(said.identity.session)
    if known is not None:
        return _resume(draft, known, said)
    refusal = _foreign_round(draft, said) or _refuse_run(draft, said)
    if refusal is None:
        job = _open_if_needed(draft, said)
        refusal = _refuse_identity(draft, job, said.identity)
        if refusal is None:
            _join(draft, job, said)
    if refusal is not None:
        draft.effects.append(Refuse(said.identity.session, said.connection, refusal))
    return refusal


def _raise_epoch(draft: Draft, said: inputs.Hello) -> None:
    """Outrank every coordinator that an agent has heard."""
    is_other = said.coordinator_id not in ("", draft.state.coordinator_id)
    if said.epoch > draft.epoch or (said.epoch == draft.epoch and is_other):
        draft.raise_epoch(said.epoch + 1)
        draft.records.append(EpochRaised(said.epoch + 1))


def _foreign_round(draft: Draft, said: inputs.Hello) -> Refusal | None:
    state = draft.state
    is_foreign = said.coordinator_durable and said.coordinator_id != state.coordinator_id
    if said.claim is None or not is_foreign:
        return None
    facts = (("coordinator_id", state.coordinator_id), ("owner_id", said.coordinator_id))
    return Refusal(RefusalKind.FOREIGN_ROUND, facts)


def _refuse_run(draft: Draft, said: inputs.Hello) -> Refusal | None:
    """Refuse an agent of a run that is over, and one that comes between two runs."""
    job = draft.job(said.identity.job_id)
    if job is None:
        if len(draft.state.jobs) >= JOBS_MAX and not _forget_oldest(draft):
            return Refusal(RefusalKind.LIMIT_REACHED, (("limit", "jobs"), ("value", JOBS_MAX)))
        return None
    if said.run and said.run < job.run:
        return stale("run", job.run, said.run)
    tally = draft.tally(job.job_id)
    if tally.nodes >= NODES_PER_JOB_MAX:
        facts = (("limit", "nodes per job"), ("value", NODES_PER_JOB_MAX))
        return Refusal(RefusalKind.LIMIT_REACHED, facts)
    if job.phase is Phase.CLOSED and not _belongs_to(job, said) and tally.nodes > 0:
        facts = (("job_id", job.job_id), ("run", job.run))
        return Refusal(RefusalKind.PREVIOUS_RUN_ENDING, facts)
    return None


def _belongs_to(job: Job, said: inputs.Hello) -> bool:
    """Return whether the agent is part of the job's latest run, or of the launch that had it."""
    launch_id = said.identity.launch_id
    return said.run == job.run or bool(launch_id and launch_id == job.launch_id)


def _forget_oldest(draft: Draft) -> bool:
    """Drop the ended job that closed first, if there is one without nodes."""
    ended = [
        job
        for job in draft.state.jobs.values()
        if job.phase is Phase.CLOSED and draft.tally(job.job_id).nodes == 0
    ]
    if not ended:
        return False
    forget(draft, min(ended, key=lambda job: (job.closed_ms or 0, job.job_id)))
    return True


def forget(draft: Draft, job: Job) -> None:
    """Drop an ended job."""
    draft.remove_job(job.job_id)
    draft.records.append(JobForgotten(job.job_id))


def _open_if_needed(draft: Draft, said: inputs.Hello) -> Job:
    """Return the job that the agent joins, with a new run if it needs one."""
    job = draft.job(said.identity.job_id)
    if job is not None and (job.phase is not Phase.CLOSED or _belongs_to(job, said)):
        return job
    run = max(said.run, 1) if job is None else max(said.run, job.run + 1)
    fence_ms = said.identity.spec.fence_ms
    blind_until_ms = fence_ms + SLACK_MS if draft.state.is_blind and fence_ms else 0
    opened = Job(
        job_id=said.identity.job_id,
        run=run,
        spec=said.identity.spec,
        opened_ms=draft.now_ms,
        forming_since_ms=draft.now_ms,
        launch_id=said.identity.launch_id,
        round_number=0 if job is None else job.round_number,  # grows through all runs of the job
        asked=() if job is None else job.asked,  # an agent that is back has still to leave
        health=() if job is None else job.health,
        fences=() if job is None else job.fences,
        blind_until_ms=max(blind_until_ms, 0 if job is None else job.blind_until_ms),
    )
    _record_opened(draft, opened)
    draft.put_job(opened)
    draft.set_deadline(DeadlineKind.FORGET, opened.job_id, None)
    draft.changed(opened.job_id, "run_opened", run=opened.run)
    return opened


def _record_opened(draft: Draft, job: Job) -> None:
    draft.records.append(run_opened(job))


def _refuse_identity(draft: Draft, job: Job, identity: Identity) -> Refusal | None:
    """Refuse a spec, name, rank or address that does not fit the job; oust a broken holder."""
    job_id = job.job_id
    if job.phase is not Phase.CLOSED and identity.spec != job.spec:
        return Refusal(
            RefusalKind.SPEC_MISMATCH,
            (("job_id", job_id),),
            differences=compare_specs(job.spec, identity.spec),
        )
    other = next(iter(draft.nodes_of(job_id)), None)
    if other is not None and is_loopback(other.identity.address) != is_loopback(identity.address):
        facts = (
            ("node_name", identity.name),
            ("address", identity.address),
            ("other_node_name", other.name),
            ("other_address", other.identity.address),
        )
        return Refusal(RefusalKind.ADDRESS_MISMATCH, facts)
    if identity.name_explicit:
        holder = draft.holder(job_id, identity.name)
        if holder is not None and holder.attached:
            return Refusal(
                RefusalKind.NODE_NAME_IN_USE, (("job_id", job_id), ("node_name", identity.name))
            )
        if holder is not None:
            lose(draft, holder, RoundReason.NODE_LOST, "another agent took its name")
    if identity.node_rank is not None:
        holder = draft.holder(job_id, identity.node_rank)
        if holder is not None and holder.attached:
            return Refusal(
                RefusalKind.NODE_RANK_IN_USE,
                (
                    ("job_id", job_id),
                    ("node_rank", identity.node_rank),
                    ("node_name", holder.name),
                ),
            )
        if holder is not None:
            lose(draft, holder, RoundReason.NODE_LOST, "another agent took its node rank")
    return None


def is_loopback(address: str) -> bool:
    """Return whether workers on other hosts cannot reach this address."""
    return address.startswith("127.") or address in ("::1", "localhost")


def compare_specs(expected: JobSpec, actual: JobSpec) -> tuple[tuple[str, str, str], ...]:
    """Return (flag, expected, actual) for every field that differs, in order of declaration.

    `min_nodes` and `max_nodes` are one flag, `nnodes`.
    """
    found: list[tuple[str, str, str]] = []
    if (expected.min_nodes, expected.max_nodes) != (actual.min_nodes, actual.max_nodes):
        found.append(("nnodes", _nnodes(expected), _nnodes(actual)))
    for spec_field in fields(JobSpec):
        name = spec_field.name
        was, came = getattr(expected, name), getattr(actual, name)
        if name not in ("min_nodes", "max_nodes") and was != came:
            if name.endswith("_ms"):
                name, was, came = name[:-3], _seconds(name, was), _seconds(name, came)
            elif isinstance(was, tuple):
                was, came = (",".join(map(str, codes)) or "none" for codes in (was, came))
            found.append((_FLAGS.get(name, name.replace("_", "-")), str(was), str(came)))
    return tuple(found)


_FLAGS = {
    "grace": "shutdown-timeout",
    "settle": "settle-time",
    "fence": "fence-after",
    "no_retry": "no-retry-exit-codes",
    "no_requeue": "no-requeue-exit-codes",
    "progress": "progress-after",
}


def _seconds(name: str, ms: int) -> str:
    return "not given" if ms == 0 and name in _NOT_GIVEN else f"{ms / 1000:g} s"


_NOT_GIVEN = ("heartbeat_interval_ms", "lease_ms")
"""Fields whose 0 stands for what the coordinator does by itself."""


def _nnodes(spec: JobSpec) -> str:
    return f"{spec.min_nodes}:{spec.max_nodes}"


def _join(draft: Draft, job: Job, said: inputs.Hello) -> None:
    """Add a node that this coordinator does not know."""
    identity = said.identity
    name = _free_name(draft, identity)
    node = Node(
        identity=identity,
        name=name,
        arrival=job.next_arrival,
        connection=said.connection,
        acknowledged=said.acknowledged,
        revision=said.revision,
        bar=find_bar(job.health, name, draft.now_ms),
    )
    if said.ready is not None:
        node = node._replace(
            activity=Activity.READY,
            port=said.ready.port,
            held_round=said.ready.round,
        )
    elif said.claim is not None:
        claim = said.claim
        keep = claim if draft.window_is_open else None
        node = node._replace(held_round=claim.header.number, claim=keep)
    job = draft.the_job(job.job_id)
    job = replace(job, next_arrival=job.next_arrival + 1, deserted_ms=None)
    if draft.window_is_open and said.run > job.run:
        job = replace(job, run=said.run)
        _record_opened(draft, job)
        for other in draft.nodes_of(job.job_id):
            # They take part in this run too, and will say so to the next coordinator.
            draft.effects.append(Welcome(other.session, other.connection, other.name, job.run))
    draft.put_job(job)
    draft.set_deadline(DeadlineKind.ABANDON, job.job_id, None)
    draft.put_node(node)
    if said.ready is not None:
        lift_fence(draft, node)
    elif node.claim is None:
        fence_unclean(draft, node)
    note_arrival(draft, node)
    ask_again(draft, node)
    if said.draining is not None:
        begin_drain(draft, draft.the_node(node.session), *said.draining)
    _greet(draft, draft.the_node(node.session), job)
    draft.changed(job.job_id, "node_joined", node=node.name)


def _free_name(draft: Draft, identity: Identity) -> NodeName:
    """Return the node's name, with the lowest free number from 2 added if it is taken."""
    name, number = identity.name, 2
    while draft.holder(identity.job_id, name) is not None:
        assert not identity.name_explicit
        name = NodeName(f"{identity.name}-{number}")
        number += 1
    return name


def _greet(draft: Draft, node: Node, job: Job) -> None:
    draft.resend.add(node.session)
    draft.touched[node.session] = None
    draft.effects.append(Welcome(node.session, node.connection, node.name, job.run))
    if has_notices(draft, node):
        notify(draft, node)
    hear(draft, node)


def _resume(draft: Draft, node: Node, said: inputs.Hello) -> Refusal | None:
    """Go on with a session on a new connection."""
    session = node.session
    if said.connection <= node.connection:
        refusal = stale("connection", node.connection, said.connection)
        draft.effects.append(Refuse(session, said.connection, refusal))
        return refusal
    node = node._replace(
        connection=said.connection,
        attached=True,
        broke_ms=None,
        acknowledged=max(node.acknowledged, said.acknowledged),
        revision=max(node.revision, said.revision),
    )
    if node.claim is not None:
        node = node._replace(claim=said.claim)
    draft.put_node(node)
    draft.set_deadline(DeadlineKind.GRACE, session, None)
    if said.ready is not None:
        become_ready(draft, node, said.ready)
    elif said.claim is not None and node.member:
        if said.claim.header.number == node.held_round:
            take_claim(draft, session, said.claim)
    if said.draining is not None:
        begin_drain(draft, draft.the_node(session), *said.draining)
    _greet(draft, draft.the_node(session), draft.the_job(node.job_id))
    draft.changed(node.job_id, "node_resumed", node=node.name)
    return None


def broken(draft: Draft, sender: inputs.Sender) -> Refusal | None:
    """Begin the grace of a node whose stream ended; it is not lost yet."""
    node = speaker(draft, sender)
    if isinstance(node, Refusal):
        return node
    if node.attached:
        draft.put_node(node._replace(attached=False, broke_ms=draft.now_ms))
        draft.set_deadline(DeadlineKind.LEASE, node.session, None)
        grace_ms = draft.state.timing.reconnect_grace_ms
        draft.set_deadline(DeadlineKind.GRACE, node.session, draft.now_ms + grace_ms)
        draft.changed(node.job_id, "node_disconnected", node=node.name)
        _note_break(draft, node)
    return None


def _note_break(draft: Draft, node: Node) -> None:
    """Count the break; when the path is to blame, graces that end from now on become leases."""
    state, was_suspected = draft.state, draft.path.is_suspected(draft.now_ms)
    path = note_break(draft.path, len(state.nodes), draft.now_ms, state.own_lease_ms())
    draft.put_path(path)
    if path.is_suspected(draft.now_ms) and not was_suspected:
        breaks, sessions = path.breaks(), len(state.nodes)
        draft.changed(node.job_id, "path_suspected", breaks=breaks, sessions=sessions)


def lose(draft: Draft, node: Node, reason: RoundReason, text: str) -> None:
    """Let a node go for good; its round ends unless it had succeeded."""
    is_lost = reason is RoundReason.NODE_LOST
    if not is_lost:
        end_drain(draft, node)
    if node.drain is not None:
        why = node.drain.reason
        reason, text = RoundReason.DRAINED, why if why in text else f"{why}; {text}"
    is_stopped = draft.the_job(node.job_id).phase is Phase.STOPPING
    is_drained = reason is RoundReason.DRAINED and not is_lost
    if not (is_drained and is_stopped) or node.activity is Activity.SUCCEEDED:
        # A drained node that goes when its workers were stopped explains nothing: one whose workers
        # had gone by themselves has said so before (Refused with LEAVING).
        depart(draft, node, reason, text)
    if is_lost:
        fence_lost(draft, node)
    else:
        lift_fence(draft, node)
    draft.remove_node(node)
    draft.effects.append(Disconnect(node.session))
    job = draft.the_job(node.job_id)
    at_ms = draft.now_ms if node.broke_ms is None else node.broke_ms
    # For its round it was drained; for the run it was lost, and may come back.
    departure = Departure(node.name, at_ms, RoundReason.NODE_LOST if is_lost else reason, text)
    draft.put_job(replace(job, lost=(*job.lost, departure)[-LOST_MAX:]))
    event = "node_lost" if is_lost else "node_left"
    draft.changed(job.job_id, event, node=node.name, why=text)
