"""A coordinator without memory takes over rounds that run already.

It listens first (the window: longer than the longest pause between an agent's attempts), then looks
at what the agents of each job say they hold. The latest round that anyone claims is the job's
round. When every place in it is claimed exactly once and all claims agree, the round is adopted and
no worker is touched. Otherwise it is known to be incomplete: it is stopped where it runs and formed
anew, with the same restart count and nothing charged. A member that comes after the window finds
its round unknown and is told to stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rallypoint.server.core.drains import announce_again
from rallypoint.server.core.effects import run_opened
from rallypoint.server.core.fences import fence_unclean
from rallypoint.server.core.model import (
    Activity,
    Departure,
    Job,
    JobId,
    Member,
    NodeName,
    Phase,
    Round,
    RoundHeader,
    RoundReason,
)
from rallypoint.server.core.node import Claim, Node
from rallypoint.server.core.ranks import is_gapless
from rallypoint.server.core.reports import take_claim
from rallypoint.server.core.rounds import begin_round
from rallypoint.server.core.state import Draft


def adopt(draft: Draft, job_id: JobId) -> None:
    """Take over the round that the job's agents claim, if they claim any."""
    job = draft.the_job(job_id)
    nodes = list(draft.nodes_of(job_id))
    claimed = [(node, node.claim) for node in nodes if node.claim is not None]
    for node, _ in claimed:
        draft.put_node(node._replace(claim=None))
    _adopt_latest(draft, job, nodes, claimed)
    for node, _ in claimed:
        now = draft.the_node(node.session)
        if not now.member:
            fence_unclean(draft, now)  # its round is over


def _adopt_latest(
    draft: Draft, job: Job, nodes: Sequence[Node], claimed: Sequence[tuple[Node, Claim]]
) -> None:
    """Take over the latest round that is claimed, if nobody present was in a later one."""
    if job.phase is not Phase.FORMING or job.round is not None:
        return
    run = max((claim.header.run for _, claim in claimed), default=0)
    current = [(node, claim) for node, claim in claimed if claim.header.run == run == job.run]
    if not current:
        return
    # A number that nobody remembered may have been given again, so the epoch counts first.
    header = max((claim.header for _, claim in current), key=lambda h: (h.epoch, h.number))
    job = _take_counts(draft, job, header)
    claimants = {node.session for node, _ in claimed}
    if any(node.held_round > header.number and node.session not in claimants for node in nodes):
        return  # somebody was in a later round, which is over: so is this one
    _take_over(
        draft, job, header, [(node, claim) for node, claim in current if claim.header == header]
    )


def _take_counts(draft: Draft, job: Job, header: RoundHeader) -> Job:
    """Go on counting where the latest round of the run began, whatever becomes of it."""
    job = replace(job, restart_count=header.restart_count, round_number=header.number)
    draft.put_job(job)
    draft.records.append(run_opened(job))
    return job


def _take_over(
    draft: Draft, job: Job, header: RoundHeader, holders: Sequence[tuple[Node, Claim]]
) -> None:
    """Make the claimed round the running one; when it is not whole, its end follows at once."""
    places: dict[int, tuple[Node, Claim]] = {}
    for node, claim in holders:
        # Two agents that claim one place are two lives of one node, and nobody can tell whose peers
        # the others talk to: the round is over.
        places.setdefault(claim.assignment.group_rank, (node, claim))
    placed = [places[rank] for rank in sorted(places)]
    for node, claim in placed:
        draft.put_node(
            node._replace(
                claim=None,
                member=True,
                assignment=claim.assignment,
                activity=Activity.ASSIGNED,
                held_round=header.number,
            )
        )
    members = tuple(Member(node.name, claim.assignment) for node, claim in placed)
    lost = _find_flaw(draft.now_ms, header, members, len(holders))
    begin_round(draft, job, Round(header, members, draft.now_ms, None, departures=lost))
    for node, claim in placed:
        take_claim(draft, node.session, claim)
        announce_again(draft, draft.the_node(node.session))
    adopted = draft.the_job(job.job_id)
    if adopted.round is not None and not adopted.round.departures:
        # Whoever sealed it had waited until nothing older could run.
        draft.put_job(replace(adopted, blind_until_ms=0))
    event = "round_incomplete" if lost else "round_adopted"
    draft.changed(job.job_id, event, round=header.number, nodes=len(members))


def _find_flaw(
    now_ms: int, header: RoundHeader, members: Sequence[Member], holders: int
) -> tuple[Departure, ...]:
    """Return what keeps the round from being adopted as a departure, or nothing."""
    held = {member.assignment.group_rank for member in members}
    missing = next((rank for rank in range(header.group_world_size) if rank not in held), None)
    if missing is not None:
        name = NodeName(f"of group rank {missing}")
        text = "it did not come back after the coordinator had been replaced"
    elif holders > len(members):
        name = members[0].name
        text = "two agents hold the same place after the coordinator had been replaced"
    elif not is_gapless(members, header.world_size):
        name = members[0].name
        text = "its ranks and those of its peers do not make up the round"
    else:
        return ()
    return (Departure(name, now_ms, RoundReason.NODE_LOST, text),)
