"""In the window, agents of a run that an earlier coordinator knew outrank newcomers.

A coordinator without memory takes the spec of a job, names and node ranks from the first agents
that find it. One of them may be new, while the members of the run are still on their way. So the
Hello of a member removes every newcomer that contradicts it. The newcomer gets the answer that it
would have got had it come last.

Between members the first counts: what two members of one run say does not differ.
"""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.base.addresses import is_loopback
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Refuse, Welcome
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.node import Identity, Node
from rallypoint.server.core.rounds.fences import SLACK_MS, lift_fence
from rallypoint.server.core.sessions.admission import (
    address_mismatch,
    name_in_use,
    node_rank_in_use,
    spec_mismatch,
)
from rallypoint.server.core.sessions.programs import compare_programs
from rallypoint.server.core.sessions.reports import renew_lease
from rallypoint.server.core.state.draft import Draft


def is_newcomer(hello: inputs.Hello) -> bool:
    """Return whether an agent belongs to no run yet, as far as it knows."""
    return hello.run == 0 and hello.held is None


def displace_newcomers(draft: Draft, hello: inputs.Hello) -> None:
    """Remove the newcomers that contradict a member of the run, while the window is open."""
    job_id = hello.identity.job_id
    if is_newcomer(hello) or not draft.awaits_adoption(job_id) or draft.job(job_id) is None:
        return
    for node in tuple(draft.nodes_of(job_id)):
        if not node.is_newcomer:
            continue
        why = _find_contradiction(node, hello.identity)
        if why is not None:
            _remove(draft, node, why)
        elif hello.identity.name_explicit and node.name == hello.identity.name:
            _rename(draft, node)
    _take_spec(draft, hello)


def _find_contradiction(node: Node, member: Identity) -> Refusal | None:
    """Return why a newcomer cannot stay beside a member; None when it can."""
    own = node.identity
    if own.spec != member.spec:
        return spec_mismatch(member.job_id, member.spec, own.spec)
    other_program = compare_programs(own, member.name, member)
    if other_program is not None:
        return other_program
    if is_loopback(own.address) != is_loopback(member.address):
        return address_mismatch(own, member.name, member.address)
    if own.name_explicit and member.name_explicit and own.name == member.name:
        return name_in_use(own)
    if own.node_rank is not None and own.node_rank == member.node_rank:
        return node_rank_in_use(own, member.name)
    return None


def _remove(draft: Draft, node: Node, why: Refusal) -> None:
    lift_fence(draft, node)
    draft.remove_node(node)
    draft.effects.append(Refuse(node.session, node.connection, why))
    draft.emit(node.job_id, "newcomer_displaced", node=node.name, why=why.kind.value)


def _rename(draft: Draft, node: Node) -> None:
    """Give a newcomer another name than the one that was made up for it."""
    name = numbered_name(draft, node.identity)
    draft.remove_node(node)
    renamed = replace(node, name=name)
    draft.put_node(renamed)
    run = draft.require_job(node.job_id).run
    draft.effects.append(Welcome(node.session, node.connection, name, run))
    renew_lease(draft, renamed)
    draft.emit(node.job_id, "node_renamed", node=name, before=node.name)


def numbered_name(draft: Draft, identity: Identity) -> NodeName:
    """Return the node's name with the lowest free number from 2."""
    number = 2
    while draft.holder(identity.job_id, name := NodeName(f"{identity.name}-{number}")) is not None:
        number += 1
    return name


def _take_spec(draft: Draft, hello: inputs.Hello) -> None:
    """Give a job that only newcomers had opened the spec of the members."""
    job = draft.require_job(hello.identity.job_id)
    if job.spec == hello.identity.spec or draft.tally(job.job_id).nodes > 0:
        return
    fence_after_ms = hello.identity.spec.fence_after_ms
    job = replace(
        job,
        spec=hello.identity.spec,
        launch_id=hello.identity.launch_id,
        unknown_past_until_ms=fence_after_ms + SLACK_MS if fence_after_ms else 0,
    )
    draft.put_job(job)
