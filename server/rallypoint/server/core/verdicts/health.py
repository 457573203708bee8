"""Which nodes are set aside: those that fail again and again, and those that an operator cordons.

Health is kept for a node's name, so it outlives agents and runs. `quarantine_after` failures within
`quarantine_window` set a node aside for a cooldown, which doubles from one quarantine to the next;
a spare takes its place. A quarantine never leaves a job without `min_nodes`: where too few nodes
are left, those whose quarantine ends first are used. A cordon holds always, and only an operator
takes it back. Neither touches a round that runs.

What a node's health means for it now is its bar, kept with the node whenever the health of its name
changes: no decision looks for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from rallypoint.server.core import inputs
from rallypoint.server.core.deadlines import DeadlineKind
from rallypoint.server.core.effects import NodeHealthChanged, Refusal, RefusalKind
from rallypoint.server.core.model import (
    Bar,
    Job,
    JobId,
    JobSpec,
    NodeHealth,
    NodeName,
    Round,
    Verdict,
    VerdictCause,
)
from rallypoint.server.core.node import Node
from rallypoint.server.core.state import Draft

HEALTH_MAX = 1_024
"""Names that a job keeps the health of: as many nodes as the largest job that is measured."""
COOLDOWN_MS_MAX = 86_400_000
"""A quarantine grows up to a day: nobody would wait longer for a node to mend by itself."""
NAMED_MAX = 16
"""Cordoned nodes that a verdict names."""
REASON_CHARS_MAX = 120
"""Of an operator's reason, in a wait that names many nodes; the health itself has it whole."""

_OWN_FAULTS = frozenset(
    {
        VerdictCause.WORKER_FAILED,
        VerdictCause.CANNOT_START,
        VerdictCause.NODE_LOST,
        VerdictCause.START_OVERDUE,
    }
)
"""Causes that count against the node that a verdict names; to leave on purpose is none."""


# --- What is known of a name ----------------------------------------------------------------------


def find_health(known: Sequence[NodeHealth], name: NodeName) -> NodeHealth:
    """Return what is known of a name; a blank health when nothing is."""
    at = _place(known, name)
    return known[at] if at < len(known) and known[at].name == name else NodeHealth(name)


def with_health(known: tuple[NodeHealth, ...], health: NodeHealth) -> tuple[NodeHealth, ...]:
    """Return `known`, sorted by name, with one entry added or replaced, or removed if blank."""
    at = _place(known, health.name)
    is_there = at < len(known) and known[at].name == health.name
    entry = () if is_blank(health) else (health,)
    return (*known[:at], *entry, *known[at + is_there :])


def _place(known: Sequence[NodeHealth], name: NodeName) -> int:
    return bisect_left(known, name, key=lambda health: health.name)


def is_blank(health: NodeHealth) -> bool:
    """Return whether nothing is known of the name."""
    return health == NodeHealth(health.name)


def is_quarantined(health: NodeHealth, now_ms: int) -> bool:
    """Return whether the node is set aside now for its failures."""
    return health.quarantined_until_ms > now_ms


def recent_failures(health: NodeHealth, spec: JobSpec, now_ms: int) -> tuple[int, ...]:
    """Return when the failures came that still count, oldest first."""
    since_ms = now_ms - spec.quarantine_window_ms
    return tuple(at_ms for at_ms in health.failures_ms if at_ms > since_ms)


def is_notable(health: NodeHealth, spec: JobSpec, now_ms: int) -> bool:
    """Return whether a node was set aside or has failed lately."""
    return health.cordoned or health.quarantines > 0 or bool(recent_failures(health, spec, now_ms))


def bar_of(health: NodeHealth, now_ms: int) -> Bar:
    """Return what a node's health means for its place in rounds now."""
    if health.cordoned:
        return Bar.CORDONED
    return Bar.QUARANTINED if is_quarantined(health, now_ms) else Bar.NONE


def find_bar(known: Sequence[NodeHealth], name: NodeName, now_ms: int) -> Bar:
    """Return what is known of a name as a bar."""
    return bar_of(find_health(known, name), now_ms)


def describe(health: NodeHealth, now_ms: int) -> str:
    """Return why the node is set aside now in a few words, or "" when it is not."""
    match bar_of(health, now_ms):
        case Bar.CORDONED:
            reason = health.reason[:REASON_CHARS_MAX]
            return f"cordoned: {reason}" if reason else "cordoned"
        case Bar.QUARANTINED:
            left_ms = health.quarantined_until_ms - now_ms
            return f"quarantined, {left_ms / 1000:.0f} s left"
        case Bar.NONE:
            return ""


def fail(health: NodeHealth, spec: JobSpec, now_ms: int, text: str) -> NodeHealth:
    """Return the health of a node after one more failure of its own.

    A quarantine uses up the failures that led to it: the next one needs as many again.

    Args:
        health: what was known of it.
        spec: of the run; its `quarantine_after` is 1 or more.
        now_ms: when the failure was decided.
        text: the failure as one line.
    """
    failures_ms = (*recent_failures(health, spec, now_ms), now_ms)
    reason = health.reason if health.cordoned else text
    if len(failures_ms) < spec.quarantine_after:
        return replace(health, failures_ms=failures_ms, reason=reason)
    return replace(
        health,
        failures_ms=(),
        quarantined_until_ms=now_ms + compute_cooldown_ms(spec, health.quarantines),
        quarantines=health.quarantines + 1,
        reason=reason,
    )


def compute_cooldown_ms(spec: JobSpec, quarantines: int) -> int:
    """Return the length of a quarantine after `quarantines` (0 or more) earlier ones."""
    longest_ms = max(COOLDOWN_MS_MAX, spec.quarantine_cooldown_ms)
    return min(spec.quarantine_cooldown_ms << min(quarantines, 32), longest_ms)


# --- What follows for rounds ----------------------------------------------------------------------


def choose_candidates(job: Job, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes that a round may have now.

    Args:
        job: the job with the health of its nodes.
        nodes: all its nodes, in order of arrival.

    Returns:
        The eligible nodes and, up to `min_nodes`, those whose quarantine ends first; in order of
        arrival.
    """
    missing = job.spec.min_nodes - sum(node.is_eligible for node in nodes)
    reserve = sorted(
        (node for node in nodes if node.is_reserve),
        key=lambda node: find_health(job.health, node.name).quarantined_until_ms,
    )
    needed = {node.session for node in reserve[: max(0, missing)]}
    return tuple(node for node in nodes if node.is_eligible or node.session in needed)


def describe_cordoned(draft: Draft, job: Job) -> str:
    """Return which of the job's nodes are cordoned, as the end of a sentence."""
    names = [
        health.name
        for health in job.health
        if health.cordoned and draft.holder(job.job_id, health.name) is not None
    ]
    return "; cordoned: " + ", ".join(names[:NAMED_MAX]) if names else ""


# --- What changes it ------------------------------------------------------------------------------


def blame(draft: Draft, job: Job, round: Round, verdict: Verdict | None) -> None:
    """Count the end of a settled round against the node that was at fault, if one was."""
    if verdict is None or verdict.name is None or verdict.cause not in _OWN_FAULTS:
        return
    is_found = round.header.epoch != draft.epoch and round.stop_ms == round.sealed_ms
    if verdict.cause is VerdictCause.NODE_LOST and is_found:
        return  # a round that was not whole when it was found: nobody saw a node go
    note_failure(draft, job.job_id, verdict.name, verdict.text)


def note_failure(draft: Draft, job_id: JobId, name: NodeName, text: str) -> None:
    """Count a failure of a node, and set it aside when it is one too many."""
    job = draft.the_job(job_id)
    if job.spec.quarantine_after == 0:
        return
    before = find_health(job.health, name)
    after = fail(before, job.spec, draft.now_ms, text)
    if _put(draft, job_id, after) and after.quarantines > before.quarantines:
        draft.changed(
            job_id,
            "node_quarantined",
            node=name,
            for_ms=after.quarantined_until_ms - draft.now_ms,
            quarantines=after.quarantines,
            why=text,
        )


def cordon(draft: Draft, said: inputs.Cordon) -> Refusal | None:
    """Set a node aside until an operator takes that back."""
    job = draft.job(said.job_id)
    if job is None:
        return unknown_job(said.job_id)
    known = find_health(job.health, said.name)
    if not _put(draft, said.job_id, replace(known, cordoned=True, reason=said.reason)):
        facts = (("limit", "nodes set aside"), ("value", HEALTH_MAX))
        return Refusal(RefusalKind.LIMIT_REACHED, facts)
    draft.changed(said.job_id, "node_cordoned", node=said.name, why=said.reason)
    return None


def uncordon(draft: Draft, said: inputs.Uncordon) -> Refusal | None:
    """Forget all that is held against a node."""
    job = draft.job(said.job_id)
    if job is None:
        return unknown_job(said.job_id)
    if not is_blank(find_health(job.health, said.name)):
        _store(draft, said.job_id, NodeHealth(said.name))
        draft.changed(said.job_id, "node_uncordoned", node=said.name)
    return None


def unknown_job(job_id: JobId) -> Refusal:
    """Return the refusal of a request about a job that nobody knows."""
    return Refusal(RefusalKind.UNKNOWN_JOB, (("job_id", job_id),))


def end_quarantines(draft: Draft, job_id: JobId) -> None:
    """Take back the nodes whose quarantine is over, and let the end of the next one be due.

    What is known of them stays.
    """
    known = draft.the_job(job_id).health
    for health in known:
        node = draft.holder(job_id, health.name)
        if node is not None and node.bar is Bar.QUARANTINED:
            if _set_bar(draft, job_id, health):
                draft.changed(job_id, "quarantine_ended", node=health.name)
    ends = (health.quarantined_until_ms for health in known)
    next_ms = min((end_ms for end_ms in ends if end_ms > draft.now_ms), default=None)
    draft.set_deadline(DeadlineKind.HEALTH, job_id, next_ms)


def _put(draft: Draft, job_id: JobId, health: NodeHealth) -> bool:
    """Keep the health of a name; return False when there is no room for another one."""
    job = draft.the_job(job_id)
    if is_blank(find_health(job.health, health.name)) and len(job.health) >= HEALTH_MAX:
        mended = [known for known in job.health if bar_of(known, draft.now_ms) is Bar.NONE]
        if not mended:
            return False
        oldest = min(mended, key=_last_ms)
        _store(draft, job_id, NodeHealth(oldest.name))
    _store(draft, job_id, health)
    return True


def _last_ms(health: NodeHealth) -> int:
    """Return when something was last wrong with a node."""
    return max((health.quarantined_until_ms, *health.failures_ms))


def _store(draft: Draft, job_id: JobId, health: NodeHealth) -> None:
    job = draft.the_job(job_id)
    draft.put_job(replace(job, health=with_health(job.health, health)))
    draft.records.append(NodeHealthChanged(job_id, health))
    _set_bar(draft, job_id, health)
    end_quarantines(draft, job_id)  # one may be over whose deadline this step would move


def _set_bar(draft: Draft, job_id: JobId, health: NodeHealth) -> bool:
    """Let the node of that name have the bar that its health means; return whether that is new."""
    node, bar = draft.holder(job_id, health.name), bar_of(health, draft.now_ms)
    if node is None or node.bar is bar:
        return False
    node = node._replace(bar=bar)
    draft.put_node(node)
    if node.is_eligible and not node.member:  # it counts as one that has just come
        draft.put_job(replace(draft.the_job(job_id), last_arrival_ms=draft.now_ms))
    return True
