"""Why a job is not further than it is, for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rallypoint.server.core.deadlines import DeadlineKind
from rallypoint.server.core.health import REASON_CHARS_MAX, describe
from rallypoint.server.core.model import Activity, Job, Phase, RoundReason, WaitKind
from rallypoint.server.core.node import Node
from rallypoint.server.core.state import State, Tally
from rallypoint.server.core.waits import Wait, decide_forming

NAMED_MAX = 16
"""Nodes that an explanation names; it has the same size however large the job is."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A node that a wait is about."""

    name: str
    state: str
    since_ms: int | None
    """How long it has been so; None when unknown."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a job waits for."""

    kind: WaitKind
    ready_nodes: int
    needed_nodes: int
    awaited: tuple[Awaited, ...]
    left_ms: int | None
    """Until the wait ends by itself; None when only an event ends it."""
    text: str


def explain(state: State, job: Job, now_ms: int) -> Waiting | None:
    """Return what the job waits for, or None when it waits for nothing."""
    tally = state.tallies.get(job.job_id, Tally())
    match job.phase:
        case Phase.FORMING:
            return _forming(state, job, tally, now_ms)
        case Phase.RUNNING:
            return _running(state, job, tally, now_ms)
        case Phase.STOPPING:
            due_ms = state.deadlines.get((DeadlineKind.STOP, job.job_id))
            return _on_members(
                state, job, now_ms, WaitKind.STOP, lambda node: node.is_pending, due_ms, "to stop"
            )
        case Phase.CLOSED:
            if tally.nodes == 0:
                return None
            text = f"the run has ended; {_count(tally.nodes, 'node')} still to be told"
            return Waiting(WaitKind.FAREWELL, 0, tally.nodes, (), None, text)


def _forming(state: State, job: Job, tally: Tally, now_ms: int) -> Waiting | None:
    if state.window_until_ms > now_ms:
        wait = Wait(WaitKind.REATTACH, state.window_until_ms)
    else:
        decision = decide_forming(job, tally, now_ms)
        if not isinstance(decision, Wait):
            return None
        wait = decision
    spec, ready = job.spec, tally.placeable(job.spec.min_nodes)
    left_ms = None if wait.until_ms is None else max(0, wait.until_ms - now_ms)
    awaited: tuple[Awaited, ...] = ()
    aside = _name_aside(state, job, now_ms)
    match wait.kind:
        case WaitKind.REATTACH:
            text = "the coordinator has just started and listens for rounds that run already"
            needed = spec.min_nodes
        case WaitKind.BACKOFF:
            text = f"a pause before restart {job.restart_count} of at most {spec.max_restarts}"
            needed = spec.min_nodes
        case WaitKind.RETURNING if state.path.is_suspected(now_ms):
            return _on_path(state, job, tally, now_ms)
        case WaitKind.RETURNING:
            awaited = _name(_nodes(state, job), lambda node: not node.attached, now_ms)
            text = "members whose connection broke may still come back"
            needed = ready + tally.away
        case WaitKind.FENCE:
            awaited = _name_fenced(job, now_ms)
            text = "workers of an older round may still run" + ("" if awaited else _UNSEEN)
            needed = spec.min_nodes
        case WaitKind.LAST_CALL:
            text = f"{ready} of at most {spec.max_nodes} nodes are ready"
            needed = spec.max_nodes
            text += _name_missing(state, job, tally, needed)
        case _:
            awaited = _name_lost(state, job, now_ms)
            awaited += _name(_nodes(state, job), lambda node: not node.is_clean, now_ms)
            awaited = awaited[:NAMED_MAX]
            text = f"{ready} of at least {spec.min_nodes} nodes are ready"
            needed = spec.min_nodes
            text += _name_missing(state, job, tally, needed)
    if aside and wait.kind in (WaitKind.NODES, WaitKind.LAST_CALL):
        text += "; set aside: " + ", ".join(_phrase(node) for node in aside)
    else:
        aside = ()
    text = _sentence(text, awaited, left_ms)
    return Waiting(wait.kind, ready, needed, (awaited + aside)[:NAMED_MAX], left_ms, text)


def _on_path(state: State, job: Job, tally: Tally, now_ms: int) -> Waiting:
    """Explain that broken streams have their lease, because the path is suspected."""
    awaited = _name(_nodes(state, job), lambda node: not node.attached, now_ms)
    return_s = state.return_ms(job.spec) / 1000
    text = f"many connections broke at once, so each has a lease of {return_s:g} s to come back"
    there = tally.nodes - tally.away
    return Waiting(WaitKind.PATH, there, tally.nodes, awaited, None, _sentence(text, awaited, None))


def _running(state: State, job: Job, tally: Tally, now_ms: int) -> Waiting | None:
    if tally.away > 0 and state.path.is_suspected(now_ms):
        return _on_path(state, job, tally, now_ms)
    due_ms = state.deadlines.get((DeadlineKind.GROWTH, job.job_id))
    drain_ms = state.deadlines.get((DeadlineKind.DRAIN, job.job_id))
    if tally.unstarted > 0:
        due_ms = state.deadlines.get((DeadlineKind.START, job.job_id))
        return _on_members(
            state,
            job,
            now_ms,
            WaitKind.START,
            lambda node: node.member and node.activity is Activity.ASSIGNED,
            due_ms,
            "to start",
        )
    if drain_ms is not None:
        return _on_drains(job, tally, drain_ms - now_ms)
    if due_ms is None:
        return None
    left_ms = max(0, due_ms - now_ms)
    text = f"{_count(tally.newcomers, 'new node')} to be taken into the next round"
    return Waiting(WaitKind.GROWTH, tally.newcomers, 0, (), left_ms, _sentence(text, (), left_ms))


def _on_drains(job: Job, tally: Tally, left_ms: int) -> Waiting:
    assert job.round is not None
    awaited = tuple(
        Awaited(notice.name, f"draining: {notice.reason[:REASON_CHARS_MAX]}", None)
        for notice in job.round.notices
        if notice.name is not None
    )[:NAMED_MAX]
    text = f"the round goes on until {_count(tally.draining, 'draining node')} can go"
    return Waiting(
        WaitKind.DRAIN,
        tally.members - tally.draining,
        tally.draining,
        awaited,
        max(0, left_ms),
        _sentence(text, awaited, max(0, left_ms)),
    )


def _on_members(
    state: State,
    job: Job,
    now_ms: int,
    kind: WaitKind,
    is_awaited: Callable[[Node], bool],
    due_ms: int | None,
    what: str,
) -> Waiting:
    tally = state.tallies.get(job.job_id, Tally())
    number = tally.unstarted if kind is WaitKind.START else tally.pending
    awaited = _name(_nodes(state, job), is_awaited, now_ms)
    left_ms = None if due_ms is None else max(0, due_ms - now_ms)
    text = f"{number} of {_count(tally.members, 'node')} still {what}"
    return Waiting(
        kind, tally.members - number, number, awaited, left_ms, _sentence(text, awaited, left_ms)
    )


def _nodes(state: State, job: Job) -> Iterable[Node]:
    return (state.nodes[session] for session in state.sessions.get(job.job_id, ()))


def _name(
    nodes: Iterable[Node], is_awaited: Callable[[Node], bool], now_ms: int
) -> tuple[Awaited, ...]:
    found: list[Awaited] = []
    for node in nodes:
        if is_awaited(node):
            since_ms = None if node.broke_ms is None else now_ms - node.broke_ms
            found.append(Awaited(node.name, _state_of(node), since_ms))
            if len(found) == NAMED_MAX:
                break
    return tuple(found)


def _name_missing(state: State, job: Job, tally: Tally, needed: int) -> str:
    """Name the places that nobody has come for, where every node came for one."""
    taken = [rank for rank in range(job.spec.max_nodes) if (job.job_id, rank) in state.index]
    missing = sorted(set(range(needed)).difference(taken))
    if not missing or not taken or len(taken) < tally.nodes:
        return ""
    named = ", ".join(str(rank) for rank in missing[:NAMED_MAX])
    more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
    return f"; nobody came with --node-rank {named}{more}"


def _name_lost(state: State, job: Job, now_ms: int) -> tuple[Awaited, ...]:
    """Name the nodes that are gone and have not come back, by their latest departure."""
    latest = {lost.name: lost for lost in job.lost if (job.job_id, lost.name) not in state.index}
    return tuple(
        Awaited(
            lost.name,
            "lost" if lost.reason is RoundReason.NODE_LOST else "left",
            now_ms - lost.at_ms,
        )
        for lost in latest.values()
    )


def _name_aside(state: State, job: Job, now_ms: int) -> tuple[Awaited, ...]:
    """Name the nodes that are ready and set aside for their health."""
    found: list[Awaited] = []
    for health in job.health:
        session = state.index.get((job.job_id, health.name))
        if session is not None and state.nodes[session].is_clean:
            why = describe(health, now_ms)
            if why:
                found.append(Awaited(health.name, why, None))
    return tuple(found[:NAMED_MAX])


_UNSEEN = ": the coordinator has not run long enough to know who was lost before"


def _name_fenced(job: Job, now_ms: int) -> tuple[Awaited, ...]:
    """Name the nodes that are fenced, the last to be waited for first."""
    fences = sorted(job.fences, key=lambda fence: -fence.until_ms)
    return tuple(
        Awaited(fence.name, "not known to be clean", None)
        for fence in fences[:NAMED_MAX]
        if fence.until_ms > now_ms
    )


def _state_of(node: Node) -> str:
    if not node.attached:
        return "disconnected"
    return {
        Activity.UNREADY: "stopping an earlier round",
        Activity.ASSIGNED: "not started",
        Activity.READY: "draining",  # else nobody would wait for it
        Activity.BLOCKED: "blocked by processes that survived SIGKILL",
    }.get(node.activity, "stopping")


def _sentence(text: str, awaited: tuple[Awaited, ...], left_ms: int | None) -> str:
    if awaited:
        text += "; waiting for " + ", ".join(_phrase(node) for node in awaited)
    if left_ms is not None:
        text += f"; at most {left_ms / 1000:.1f} s more"
    return text


def _phrase(node: Awaited) -> str:
    since = "" if node.since_ms is None else f" {node.since_ms / 1000:.0f} s ago"
    return f"{node.name} ({node.state}{since})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
