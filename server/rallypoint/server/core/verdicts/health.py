"""Keeps nodes out of rounds: those that keep failing, and those that an operator cordons.

Health belongs to a node's name, so it outlives agents and runs. `quarantine_after` failures within
`quarantine_window` quarantine a node for a cooldown, which doubles with every further quarantine; a
spare takes its place. A quarantine never leaves a job without `min_nodes`: when too few nodes are
left, the job uses those whose quarantine ends first. A cordon has no exceptions, and only an
operator lifts it. Neither stops a running round.

Health decides a node's eligibility. The node stores its eligibility, and every change of its health
updates it, so decisions need no look-up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec.structs import replace

from rallypoint.base.values import describe_in_sentence
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Limit, Refusal, limit_reached
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import Job, NodeHealth
from rallypoint.server.core.model.node import Eligibility, Node
from rallypoint.server.core.model.round import Round
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence, Verdict, VerdictCause
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.draft import Draft

HEALTH_MAX = 1_024
"""Names whose health a job keeps: as many as the nodes of the largest job that was measured."""
ABSENT_CORDONS_MAX = 256
"""Cordoned names without a connected node: the rest of the names is for nodes that exist."""
COOLDOWN_MS_MAX = 86_400_000
"""The longest quarantine, unless the first one is longer: a day."""
NAMED_MAX = 16
"""Cordoned nodes that a verdict names."""
REASON_CHARS_MAX = 120
"""Length of an operator's reason in a sentence about many nodes; the health keeps all of it."""

_OWN_FAULTS = frozenset(
    {
        VerdictCause.WORKER_FAILED,
        VerdictCause.START_FAILED,
        VerdictCause.NODE_LOST,
        VerdictCause.START_OVERDUE,
        VerdictCause.HUNG,
    }
)
"""Causes that count against the node in the verdict; leaving on purpose does not."""


# --- The health of a name -------------------------------------------------------------------------


def find_health(known: Sequence[NodeHealth], name: NodeName) -> NodeHealth:
    """Return the health of a name; blank when nothing is known."""
    at = _find_index(known, name)
    return known[at] if at < len(known) and known[at].name == name else NodeHealth(name)


def with_health(known: tuple[NodeHealth, ...], health: NodeHealth) -> tuple[NodeHealth, ...]:
    """Return `known`, sorted by name, with one entry added or replaced, or removed if blank."""
    at = _find_index(known, health.name)
    is_there = at < len(known) and known[at].name == health.name
    entry = () if is_blank(health) else (health,)
    return (*known[:at], *entry, *known[at + is_there :])


def _find_index(known: Sequence[NodeHealth], name: NodeName) -> int:
    return bisect_left(known, name, key=lambda health: health.name)


def is_blank(health: NodeHealth) -> bool:
    """Return whether nothing is known about the name."""
    return health == NodeHealth(health.name)


def is_quarantined(health: NodeHealth, now_ms: int) -> bool:
    """Return whether the node is quarantined now."""
    return health.quarantined_until_ms > now_ms


def recent_failures(health: NodeHealth, spec: JobSpec, now_ms: int) -> tuple[int, ...]:
    """Return the times of the failures that still count, oldest first."""
    since_ms = now_ms - spec.quarantine_window_ms
    return tuple(at_ms for at_ms in health.failures_ms if at_ms > since_ms)


def is_notable(health: NodeHealth, spec: JobSpec, now_ms: int) -> bool:
    """Return whether a node is cordoned, was ever quarantined, or has failed recently."""
    return health.cordoned or health.quarantines > 0 or bool(recent_failures(health, spec, now_ms))


def eligibility_of(health: NodeHealth, now_ms: int) -> Eligibility:
    """Return whether the health lets rounds use the node now."""
    if health.cordoned:
        return Eligibility.CORDONED
    return Eligibility.QUARANTINED if is_quarantined(health, now_ms) else Eligibility.ELIGIBLE


def find_eligibility(known: Sequence[NodeHealth], name: NodeName, now_ms: int) -> Eligibility:
    """Return whether rounds may use the node of this name now."""
    return eligibility_of(find_health(known, name), now_ms)


def why_kept_out(health: NodeHealth, now_ms: int) -> str:
    """Return why the node is kept out now ("quarantined, 30 s left"), or "" if it is not."""
    match eligibility_of(health, now_ms):
        case Eligibility.CORDONED:
            reason = health.reason[:REASON_CHARS_MAX]
            return f"cordoned: {reason}" if reason else "cordoned"
        case Eligibility.QUARANTINED:
            left_ms = health.quarantined_until_ms - now_ms
            return f"quarantined, {describe_in_sentence(left_ms)} left"
        case Eligibility.ELIGIBLE:
            return ""


def with_failure(
    health: NodeHealth, spec: JobSpec, now_ms: int, text: str, *, is_permanent: bool = False
) -> NodeHealth:
    """Return the health of a node after one more failure.

    A quarantine resets the count of failures: the next one needs as many again.

    Args:
        health: before the failure.
        spec: of the run; its `quarantine_after` is 1 or more.
        now_ms: when the failure was decided.
        text: the failure as one line.
        is_permanent: the next round would fail alike, so one failure is enough.
    """
    failures_ms = (*recent_failures(health, spec, now_ms), now_ms)
    reason = health.reason if health.cordoned else text
    if len(failures_ms) < spec.quarantine_after and not is_permanent:
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


# --- Its effect on rounds -------------------------------------------------------------------------


def choose_candidates(job: Job, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes that a round may use now.

    Args:
        job: the job, with the health of its nodes.
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
    """Return the names of the job's cordoned nodes as the end of a sentence."""
    names = [
        health.name
        for health in job.health
        if health.cordoned and draft.holder(job.job_id, health.name) is not None
    ]
    return "; cordoned: " + ", ".join(names[:NAMED_MAX]) if names else ""


# --- Changes of health ----------------------------------------------------------------------------


def charge_node(draft: Draft, job: Job, round: Round, verdict: Verdict | None) -> None:
    """Count the end of a settled round against the node at fault, if there is one."""
    if verdict is None or verdict.name is None or verdict.cause not in _OWN_FAULTS:
        return
    was_incomplete = round.header.epoch != draft.epoch and round.stop_ms == round.sealed_ms
    if verdict.cause is VerdictCause.NODE_LOST and was_incomplete:
        return  # a new coordinator could not adopt the round; it did not observe a loss
    is_replaced = (
        verdict.cause is VerdictCause.START_FAILED and verdict.consequence is Consequence.RESTARTED
    )
    is_permanent = is_replaced and round.start_failure is not None and round.start_failure[2]
    note_failure(draft, job.job_id, verdict.name, verdict.text, is_permanent=is_permanent)


def note_failure(
    draft: Draft, job_id: JobId, name: NodeName, text: str, *, is_permanent: bool = False
) -> None:
    """Count a failure of a node, and quarantine the node at the limit, or at once."""
    job = draft.require_job(job_id)
    if job.spec.quarantine_after == 0:
        return
    before = find_health(job.health, name)
    after = with_failure(before, job.spec, draft.now_ms, text, is_permanent=is_permanent)
    if _put(draft, job_id, after) and after.quarantines > before.quarantines:
        draft.emit(
            job_id,
            "node_quarantined",
            node=name,
            for_ms=after.quarantined_until_ms - draft.now_ms,
            quarantines=after.quarantines,
            why=text,
        )


def cordon(draft: Draft, job: Job, request: inputs.Cordon) -> Refusal | None:
    """Keep a node out of rounds until an operator lifts the cordon."""
    known = find_health(job.health, request.name)
    if not known.cordoned and _is_absent(draft, job, request.name):
        absent = sum(
            health.cordoned and _is_absent(draft, job, health.name) for health in job.health
        )
        if absent >= ABSENT_CORDONS_MAX:
            return limit_reached(Limit.ABSENT_CORDONS, ABSENT_CORDONS_MAX)
    if not _put(draft, request.job_id, replace(known, cordoned=True, reason=request.reason)):
        return limit_reached(Limit.NODE_HEALTH, HEALTH_MAX)
    draft.emit(request.job_id, "node_cordoned", node=request.name, why=request.reason)
    return None


def _is_absent(draft: Draft, job: Job, name: NodeName) -> bool:
    return draft.holder(job.job_id, name) is None


def uncordon(draft: Draft, job: Job, request: inputs.Uncordon) -> None:
    """Lift the cordon and the quarantine of a node, and forget its failures."""
    if not is_blank(find_health(job.health, request.name)):
        _store(draft, request.job_id, NodeHealth(request.name))
        draft.emit(request.job_id, "node_uncordoned", node=request.name, why=request.reason)


def end_quarantines(draft: Draft, job_id: JobId) -> None:
    """Release nodes whose quarantine is over, and set the deadline of the next one.

    Their health record stays.
    """
    known = draft.require_job(job_id).health
    for health in known:
        node = draft.holder(job_id, health.name)
        if node is not None and node.eligibility is Eligibility.QUARANTINED:
            if _set_eligibility(draft, job_id, health):
                draft.emit(job_id, "quarantine_ended", node=health.name)
    ends = (health.quarantined_until_ms for health in known)
    next_ms = min((end_ms for end_ms in ends if end_ms > draft.now_ms), default=None)
    draft.set_deadline(DeadlineKind.QUARANTINE_END, job_id, next_ms)


def _put(draft: Draft, job_id: JobId, health: NodeHealth) -> bool:
    """Store the health of a name; return False when there is no room for another name."""
    job = draft.require_job(job_id)
    if is_blank(find_health(job.health, health.name)) and len(job.health) >= HEALTH_MAX:
        usable = [
            known
            for known in job.health
            if eligibility_of(known, draft.now_ms) is Eligibility.ELIGIBLE
        ]
        if not usable:
            return False
        oldest = min(usable, key=_last_ms)
        _store(draft, job_id, NodeHealth(oldest.name))
    _store(draft, job_id, health)
    return True


def _last_ms(health: NodeHealth) -> int:
    """Return the time of a node's last failure or the end of its last quarantine."""
    return max((health.quarantined_until_ms, *health.failures_ms))


def _store(draft: Draft, job_id: JobId, health: NodeHealth) -> None:
    job = draft.require_job(job_id)
    draft.put_job(replace(job, health=with_health(job.health, health)))
    _set_eligibility(draft, job_id, health)
    end_quarantines(draft, job_id)  # the deadline may move past the end of a quarantine


def _set_eligibility(draft: Draft, job_id: JobId, health: NodeHealth) -> bool:
    """Update the eligibility of the node of that name; return True when it has changed."""
    node = draft.holder(job_id, health.name)
    eligibility = eligibility_of(health, draft.now_ms)
    if node is None or node.eligibility is eligibility:
        return False
    node = replace(node, eligibility=eligibility)
    draft.put_node(node)
    if node.is_eligible and not node.member:  # it counts as a new arrival
        draft.put_job(replace(draft.require_job(job_id), last_arrival_ms=draft.now_ms))
    return True
