"""A new coordinator without memory adopts the rounds that are already running.

It first waits for the window to close; the window is longer than the longest pause between an
agent's attempts to connect. Then it looks at the rounds that each job's agents hold. The latest of
them is the job's round. When every place in it is held exactly once and all holders agree, the
coordinator adopts the round and touches no worker. Otherwise the round is incomplete: it is stopped
and re-formed, with the same restart count and without charging a restart. A member that connects
after the window has to stop, because its round is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import HeldRound, Node, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Departure, Member, Round, RoundHeader, RoundReason
from rallypoint.server.core.rounds.drains import announce_drain
from rallypoint.server.core.rounds.fences import fence_unclean
from rallypoint.server.core.rounds.ranks import is_gapless
from rallypoint.server.core.rounds.rounds import begin_round
from rallypoint.server.core.sessions.reports import merge_held
from rallypoint.server.core.state.draft import Draft


def adopt(draft: Draft, job_id: JobId) -> None:
    """Adopt the round that the job's agents hold, if they hold one."""
    job = draft.require_job(job_id)
    nodes = list(draft.nodes_of(job_id))
    holders = [(node, node.held) for node in nodes if node.held is not None]
    for node, _ in holders:
        draft.put_node(replace(node, held=None))
    _adopt_latest(draft, job, nodes, holders)
    for node, _ in holders:
        current = draft.require_node(node.session)
        if not current.member:
            fence_unclean(draft, current)  # its round is over


def _adopt_latest(
    draft: Draft, job: Job, nodes: Sequence[Node], holders: Sequence[tuple[Node, HeldRound]]
) -> None:
    """Adopt the latest held round, unless a node is present that was in a later one."""
    if job.phase is not Phase.FORMING or job.round is not None:
        return
    run = max((held.header.run for _, held in holders), default=0)
    current = [(node, held) for node, held in holders if held.header.run == run == job.run]
    if not current:
        return
    # A coordinator without memory can reuse a round number, so the epoch counts first.
    header = max((held.header for _, held in current), key=lambda h: (h.epoch, h.number))
    if job.slots and header.number <= job.round_number:
        # This coordinator has started again in the first window of its journal. The run has had a
        # round since then, so the journal has the end of this one.
        return
    job = _adopt_counts(draft, job, header)
    holding = {node.session for node, _ in holders}
    if any(node.last_round > header.number and node.session not in holding for node in nodes):
        return  # a node was in a later round, which is over: so is this one
    _adopt_round(
        draft, job, header, [(node, held) for node, held in current if held.header == header]
    )


def _adopt_counts(draft: Draft, job: Job, header: RoundHeader) -> Job:
    """Continue the counts of the latest round of the run, adopted or not."""
    # A member may claim more restarts than its own specification allows.
    restarts = min(header.restart_count, job.spec.max_restarts)
    counts = replace(job.counts, restart_count=restarts)
    job = replace(job, counts=counts, round_number=header.number, since_epoch=draft.epoch)
    draft.put_job(job)
    return job


def _adopt_round(
    draft: Draft, job: Job, header: RoundHeader, holders: Sequence[tuple[Node, HeldRound]]
) -> None:
    """Make the held round the running one; an incomplete round is stopped at once."""
    places: dict[int, tuple[Node, HeldRound]] = {}
    for node, held in holders:
        # Two agents that hold one place are two processes of one node. The peers may be connected
        # to either one: the round is over.
        places.setdefault(held.assignment.group_rank, (node, held))
    placed = [places[rank] for rank in sorted(places)]
    for node, held in placed:
        draft.put_node(
            replace(
                node,
                held=None,
                member=True,
                assignment=held.assignment,
                state=NodeState.ASSIGNED,
                last_round=header.number,
            )
        )
    members = tuple(Member(node.name, held.assignment) for node, held in placed)
    lost = _find_flaw(draft.now_ms, header, members, len(holders))
    # They agree, but for a liar, and for agents that know no tokens.
    tokens = Counter(held.worker_token for _, held in placed if held.worker_token)
    token = tokens.most_common(1)[0][0] if tokens else ""
    now_ms = draft.now_ms
    round = Round(
        header, members, now_ms, None, departures=lost, held_token=token, taken_over_ms=now_ms
    )
    begin_round(draft, job, round)
    for node, held in placed:
        merge_held(draft, node.session, held)
        announce_drain(draft, draft.require_node(node.session))
    adopted = draft.require_job(job.job_id)
    if adopted.round is not None and not adopted.round.departures:
        # The coordinator that sealed it waited until nothing older could run.
        draft.put_job(replace(adopted, unknown_past_until_ms=0))
    event = "round_found_incomplete" if lost else "round_adopted"
    draft.emit(job.job_id, event, round=header.number, nodes=len(members))


def _find_flaw(
    now_ms: int, header: RoundHeader, members: Sequence[Member], holders: int
) -> tuple[Departure, ...]:
    """Return what makes the round incomplete, as one departure; empty when it is complete."""
    taken = {member.assignment.group_rank for member in members}
    missing = next((rank for rank in range(header.group_world_size) if rank not in taken), None)
    if missing is not None:
        name = NodeName(f"of group rank {missing}")
        text = "it did not reconnect after the coordinator restarted"
    elif holders > len(members):
        name = members[0].name
        text = "two agents hold the same place after the coordinator restarted"
    elif not is_gapless(members, header.world_size):
        name = members[0].name
        text = "its ranks and those of its peers do not add up to the round"
    else:
        return ()
    return (Departure(name, now_ms, RoundReason.NODE_LOST, text),)
