"""Nodes that leave with notice: their workers are told and go on; then a round without them.

A drain is announced by the node itself, or asked for by an operator. From then on no later round
has a place for the node. The running round goes on until a draining member is done or its time is
over, and stops once for all of them. Where too few nodes would stay, it goes on until the time of
the last one is over: a new round could not be formed before anyway.
"""

from __future__ import annotations

from dataclasses import replace

from rallypoint.server.core import inputs
from rallypoint.server.core.effects import DrainAsked, DrainOver, Notify, Refusal, RefusalKind
from rallypoint.server.core.model import (
    ASKED_MAX,
    LOST_MAX,
    Activity,
    Asked,
    Departure,
    Drain,
    Job,
    NodeName,
    NoticeOf,
    Phase,
    Round,
    RoundReason,
)
from rallypoint.server.core.node import Node
from rallypoint.server.core.state import Draft, Tally


def ask_to_drain(draft: Draft, said: inputs.DrainNode) -> Refusal | None:
    """Let an operator's wish reach the node; of several ends the first counts."""
    job = draft.job(said.job_id)
    if job is None:
        return Refusal(RefusalKind.UNKNOWN_JOB, (("job_id", said.job_id),))
    node = draft.holder(said.job_id, said.name)
    if node is None or job.phase is Phase.CLOSED:
        facts = (("job_id", said.job_id), ("node_name", said.name))
        return Refusal(RefusalKind.UNKNOWN_NODE, facts)
    begin_drain(draft, node, said.time_ms, said.reason or "an operator asked for it")
    drain = draft.the_node(node.session).drain
    assert drain is not None
    job = draft.the_job(said.job_id)
    asked = Asked(node.name, node.session, drain)
    draft.put_job(replace(job, asked=with_asked(job.asked, asked)))
    draft.records.append(DrainAsked(job.job_id, asked))
    notify(draft, draft.the_node(node.session))
    return None


def begin_drain(draft: Draft, node: Node, time_ms: int, reason: str) -> None:
    """Note that a node wants to leave within `time_ms`; said again, the first end counts."""
    known = node.drain
    until_ms = draft.now_ms + time_ms
    if known is not None and known.until_ms <= until_ms:
        return
    drain = Drain(until_ms, reason if known is None else known.reason)
    node = node._replace(drain=drain)
    draft.put_node(node)
    job = draft.the_job(node.job_id)
    if job.phase is Phase.RUNNING and _is_busy(node):
        assert job.round is not None
        draft.put_job(replace(job, round=_announce(job.round, node.name, drain)))
    if known is None:
        draft.changed(node.job_id, "node_drains", node=node.name, why=drain.reason, time_ms=time_ms)


def _announce(round: Round, name: NodeName, drain: Drain) -> Round:
    others = tuple(notice for notice in round.notices if notice.name != name)
    first_ms = round.drain_first_ms
    return replace(
        round,
        notices=(*others, NoticeOf(name, drain.until_ms, drain.reason))[:LOST_MAX],
        drain_first_ms=drain.until_ms if first_ms is None else min(first_ms, drain.until_ms),
        drain_last_ms=max(round.drain_last_ms, drain.until_ms),
    )


def without_drain_of(draft: Draft, round: Round, node: Node) -> Round:
    """Return a running round without the drain of a member that has succeeded: nobody waits."""
    left = [
        NoticeOf(other.name, other.drain.until_ms, other.drain.reason)
        for other in draft.nodes_of(node.job_id)
        if other.drain is not None and _is_busy(other) and other.session != node.session
    ]
    return replace(
        round,
        notices=tuple(left[:LOST_MAX]),
        drain_first_ms=min((notice.until_ms for notice in left), default=None),
        drain_last_ms=max((notice.until_ms for notice in left), default=0),
    )


def _is_busy(node: Node) -> bool:
    """Return whether the node has a part in the round that is not done."""
    return node.member and node.activity is not Activity.SUCCEEDED


def drain_due_ms(job: Job, tally: Tally) -> int | None:
    """Return when the running round is stopped for its draining members, or None for never."""
    round = job.round
    assert round is not None
    if round.drain_first_ms is None:
        return None
    return round.drain_first_ms if can_go_on(job, tally) else round.drain_last_ms


def can_go_on(job: Job, tally: Tally) -> bool:
    """Return whether enough nodes would stay for another round."""
    return tally.staying + tally.newcomers + tally.reserve >= job.spec.min_nodes


def is_held(job: Job, tally: Tally, now_ms: int) -> bool:
    """Return whether the round goes on although draining members are gone: too few would stay, and
    another one is still there with time left."""
    round = job.round
    assert round is not None
    if any(departure.reason is not RoundReason.DRAINED for departure in round.departures):
        return False
    return tally.draining > 0 and now_ms < round.drain_last_ms and not can_go_on(job, tally)


def reason_of_leaving(node: Node) -> RoundReason:
    """Return why a node that goes on purpose goes."""
    return RoundReason.NODE_LEFT if node.drain is None else RoundReason.DRAINED


def note_first_exit(round: Round, node: Node, now_ms: int) -> Round:
    """Note that a draining member's workers have begun to leave: connections to them break now.

    Once the round is stopped they end for that reason, which explains nothing.
    """
    if node.drain is None or round.drain_began is not None or round.stop_ms is not None:
        return round
    departure = Departure(node.name, now_ms, RoundReason.DRAINED, node.drain.reason)
    return replace(round, drain_began=departure)


def ask_again(draft: Draft, node: Node) -> None:
    """Go on with what was asked of an agent that comes back; another of its name is not meant."""
    job = draft.the_job(node.job_id)
    asked = next((asked for asked in job.asked if asked.name == node.name), None)
    if asked is None:
        return
    if asked.session != node.session:
        end_drain(draft, node)
        return
    left_ms = max(0, asked.drain.until_ms - draft.now_ms)
    begin_drain(draft, node, left_ms, asked.drain.reason)


def end_drain(draft: Draft, node: Node) -> None:
    """Forget what an operator had asked of the agent of this name."""
    job = draft.the_job(node.job_id)
    left = without_asked(job.asked, node.name)
    if left != job.asked:
        draft.put_job(replace(job, asked=left))
        draft.records.append(DrainOver(job.job_id, node.name))


def with_asked(known: tuple[Asked, ...], asked: Asked) -> tuple[Asked, ...]:
    """Return what was asked of all agents, with `asked` as the latest; the oldest are dropped."""
    return (*without_asked(known, asked.name), asked)[-ASKED_MAX:]


def without_asked(known: tuple[Asked, ...], name: NodeName) -> tuple[Asked, ...]:
    """Return what was asked of the agents of all other names."""
    return tuple(asked for asked in known if asked.name != name)


def notify(draft: Draft, node: Node) -> None:
    """Tell one node what is about to happen to its round, and what is asked of itself."""
    timed = tuple(
        (notice, max(0, notice.until_ms - draft.now_ms))
        for notice in _notices_for(draft.the_job(node.job_id), node)
    )
    draft.effects.append(Notify(node.session, timed))


def has_notices(draft: Draft, node: Node) -> bool:
    """Return whether there is anything to tell the node."""
    return bool(_notices_for(draft.the_job(node.job_id), node))


def _notices_for(job: Job, node: Node) -> tuple[NoticeOf, ...]:
    notices = () if job.round is None or not node.member else job.round.notices
    drain = node.drain
    if drain is None or any(notice.name == node.name for notice in notices):
        return notices
    return (*notices, NoticeOf(node.name, drain.until_ms, drain.reason))


def announce_again(draft: Draft, node: Node) -> None:
    """Let a round that was adopted know that a member of it drains."""
    job = draft.the_job(node.job_id)
    if node.drain is not None and _is_busy(node) and job.round is not None:
        draft.put_job(replace(job, round=_announce(job.round, node.name, node.drain)))
