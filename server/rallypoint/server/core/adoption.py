"""A coordinator without memory takes over rounds that run already.

It listens first (the window: longer than the longest pause between an agent's attempts), then looks
at what the agents of each job say they hold. The highest round that anyone claims is the job's
round. When every place in it is claimed exactly once and all claims agree, the round is adopted and
no worker is touched. Otherwise it is known to be incomplete: it is stopped where it runs and formed
anew, with the same restart count and nothing charged. A member that comes after the window finds
its round unknown and is told to stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rallypoint.server.core.effects import RunOpened
from rallypoint.server.core.model import (
    Activity,
    Claim,
    Departure,
    Job,
    JobId,
    Member,
    Node,
    NodeName,
    Phase,
    Round,
    RoundHeader,
    RoundReason,
)
from rallypoint.server.core.reports import take_claim
from rallypoint.server.core.rounds import begin_round
from rallypoint.server.core.state import Draft


def adopt(draft: Draft, job_id: JobId) -> None:
    """Take over the round that the job's agents claim, if they claim any."""
    job = draft.the_job(job_id)
    nodes = [node for node in draft.nodes_of(job_id)]
    claimed = [(node, node.claim) for node in nodes if node.claim is not None]
    for node, _ in claimed:
        draft.put_node(replace(node, claim=None))
    if job.phase is not Phase.FORMING or job.round is not None:
        return
    run = max((claim.header.run for _, claim in claimed), default=0)
    current = [(node, claim) for node, claim in claimed if claim.header.run == run == job.run]
    if not current:
        return
    header = max((claim.header for _, claim in current), key=lambda header: header.number)
    holders = [(node, claim) for node, claim in current if claim.header == header]
    if any(node.held_round > header.number for node in nodes):
        return  # somebody was in a later round, which is over: so is this one
    _take_over(draft, job, header, holders)


def _take_over(
    draft: Draft, job: Job, header: RoundHeader, holders: Sequence[tuple[Node, Claim]]
) -> None:
    """Make the claimed round the running one; with a place missing, its end follows at once."""
    places: dict[int, Node] = {}
    for node, claim in holders:
        # Two agents that claim one place are two lives of one node; the later arrival is the one
        # that lives, but nobody can tell whose peers the others talk to: the round is over.
        places.setdefault(claim.assignment.group_rank, node)
    missing = [rank for rank in range(header.group_world_size) if rank not in places]
    doubled = len(holders) - len(places)
    job = replace(
        job,
        restart_count=max(job.restart_count, header.restart_count),
        round_number=max(job.round_number, header.number),
    )
    for node, claim in holders:
        if places[claim.assignment.group_rank].session == node.session:
            draft.put_node(
                replace(
                    node,
                    claim=None,
                    member=True,
                    assignment=claim.assignment,
                    activity=Activity.ASSIGNED,
                    held_round=header.number,
                )
            )
    members = tuple(
        Member(node.name, claim.assignment)
        for node, claim in sorted(holders, key=lambda holder: holder[1].assignment.group_rank)
        if places[claim.assignment.group_rank].session == node.session
    )
    now_ms = draft.now_ms
    lost = tuple(
        Departure(
            NodeName(f"of group rank {rank}"),
            now_ms,
            RoundReason.NODE_LOST,
            "it did not come back after the coordinator had been replaced",
        )
        for rank in missing[:1]
    )
    if doubled and not lost:
        doubling = "two agents hold the same place after the coordinator had been replaced"
        lost = (Departure(members[0].name, now_ms, RoundReason.NODE_LOST, doubling),)
    draft.records.append(
        RunOpened(job.job_id, job.run, job.spec, job.launch_id, job.round_number, job.restart_count)
    )
    begin_round(draft, job, Round(header, members, now_ms, None, departures=lost))
    # A place that nobody claimed stays a hole, so that the others keep their ranks when a spare
    # fills it.
    slots = tuple(
        places[rank].name if rank in places else NodeName("")
        for rank in range(header.group_world_size)
    )
    draft.put_job(replace(draft.the_job(job.job_id), slots=slots))
    for node, claim in holders:
        if places[claim.assignment.group_rank].session == node.session:
            take_claim(draft, node.session, claim)
    draft.changed(job.job_id, "round_incomplete" if lost else "round_adopted")
