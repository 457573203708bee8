"""What a job waits for, for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from msgspec import Struct

from rallypoint.base.values import describe_in_sentence
from rallypoint.server.core.model.job import Job, NodeHealth, WaitKind
from rallypoint.server.core.model.network import are_many
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.round import Departure, Hang, RoundReason
from rallypoint.server.core.reads.meetings import Meeting, find_meeting
from rallypoint.server.core.reads.silence import find_silent, lost_after_ms
from rallypoint.server.core.rounds.waits import Wait, decide_forming
from rallypoint.server.core.sessions.admission import awaits_first_agent
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import State
from rallypoint.server.core.state.tally import Tally
from rallypoint.server.core.verdicts.health import REASON_CHARS_MAX, find_health, why_kept_out

SHOWN_MS_MIN = 100
"""Shortest remaining time that a sentence mentions; a shorter one would read as 0.0 s."""
NAMED_MAX = 16
"""Nodes that an explanation names, so that it stays small in a large job."""

TOGETHER_MAX = 3
"""Nodes in one state that a sentence names."""


class AwaitedState(Enum):
    """Why a job waits for a node."""

    LOST = "lost"
    LEFT = "left"
    DISCONNECTED = "disconnected"
    NOT_STARTED = "not started"
    STOPPING = "stopping"
    BLOCKED = "blocked"
    DRAINING = "draining"
    FENCED = "fenced"
    QUARANTINED = "quarantined"
    CORDONED = "cordoned"
    NOT_ARRIVED = "not arrived"
    SILENT = "silent"


class Awaited(Struct, frozen=True):
    """A node that a job waits for."""

    name: str
    state: AwaitedState
    text: str
    """The state in words."""
    since_ms: int | None
    """Time that it has been in that state; None when unknown."""


class Waiting(Struct, frozen=True):
    """What a job waits for."""

    kind: WaitKind
    ready_nodes: int
    needed_nodes: int
    awaited: tuple[Awaited, ...]
    left_ms: int | None
    """Until the wait ends by itself; None when only an event ends it."""
    text: str
    silent: int = 0
    """Silent nodes, if the job waits for them."""


def explain(state: State, job: Job, now_ms: int) -> Waiting | None:
    """Return what the job waits for, or None when it waits for nothing."""
    tally = state.tally(job.job_id)
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
            text = f"the run has ended; {_count(tally.nodes, 'node')} still attached"
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
    unnamed = 0
    kept_out = _name_kept_out(state, job, now_ms)
    match wait.kind:
        case WaitKind.REATTACH:
            text = "the coordinator has just started and waits for agents of running rounds"
            needed = spec.min_nodes
        case WaitKind.BACKOFF:
            text = f"a pause before restart {job.counts.restart_count} of {spec.max_restarts}"
            needed = spec.min_nodes
        case WaitKind.RETURNING if _is_network_suspected(state, job, now_ms):
            return _on_silence(state, job, tally, find_silent(state, job, now_ms), now_ms)
        case WaitKind.RETURNING:
            awaited = _name(state.nodes_of(job.job_id), lambda node: not node.attached, now_ms)
            text = "members whose connection broke may still reconnect"
            needed = ready + tally.away
        case WaitKind.FENCE:
            awaited = _name_fenced(job, now_ms)
            text = "workers of an older round may still run" + ("" if awaited else _UNSEEN)
            needed = spec.min_nodes
        case WaitKind.LAST_CALL:
            text = f"{ready} of up to {spec.max_nodes} nodes are ready"
            needed = spec.max_nodes
            text += _name_missing(state, job, tally, needed)
        case _:
            awaited = _name_lost(state, job, now_ms)
            awaited += _name(state.nodes_of(job.job_id), lambda node: not node.is_clean, now_ms)
            unnamed = max(0, max(count_gone(state, job), len(awaited)) - NAMED_MAX)
            awaited = awaited[:NAMED_MAX]
            text = _count_ready(job, ready)
            needed = spec.min_nodes
            text += _name_missing(state, job, tally, needed)
    if kept_out and wait.kind in (WaitKind.NODES, WaitKind.LAST_CALL):
        text += "; kept out: " + ", ".join(_phrase(node) for node in kept_out)
    else:
        kept_out = ()
    text = _sentence(text, awaited, left_ms, unnamed)
    return Waiting(wait.kind, ready, needed, (awaited + kept_out)[:NAMED_MAX], left_ms, text)


def _count_ready(job: Job, ready: int) -> str:
    text = f"{ready} of {job.spec.min_nodes} required nodes are ready"
    return f"{text}; no agent has come yet" if awaits_first_agent(job) else text


def _is_network_suspected(state: State, job: Job, now_ms: int) -> bool:
    return state.network.is_active(now_ms) or job.breaks.is_active(now_ms)


def _on_silence(
    state: State, job: Job, tally: Tally, silent: Sequence[tuple[int, Node]], now_ms: int
) -> Waiting:
    """Explain that nodes are silent, and when the first of them counts as lost."""
    awaited = tuple(
        Awaited(node.name, *_state_of_silent(node), for_ms) for for_ms, node in silent[:NAMED_MAX]
    )
    dues = [due_ms for _, node in silent if (due_ms := lost_after_ms(state, node)) is not None]
    left_ms = max(0, min(dues) - now_ms) if dues else None
    count, there = len(silent), tally.nodes - len(silent)
    be = "is" if count == 1 else "are"
    text = f"{count} of {_count(tally.nodes, 'node')} {be} silent"
    is_network = are_many(count, tally.nodes) or _is_network_suspected(state, job, now_ms)
    if is_network and tally.away:
        return_s = state.return_ms(job.spec) / 1000
        text += f": many connections broke at once, so each has a lease of {return_s:g} s to return"
    kind = WaitKind.NETWORK_SUSPECTED if is_network else WaitKind.RETURNING
    text = _sentence(text, awaited, left_ms, count - len(awaited))
    return Waiting(kind, there, tally.nodes, awaited, left_ms, text, silent=count)


def _state_of_silent(node: Node) -> tuple[AwaitedState, str]:
    return (AwaitedState.SILENT, "silent") if node.attached else _state_of(node)


def _running(state: State, job: Job, tally: Tally, now_ms: int) -> Waiting | None:
    if job.round is not None and job.round.hang is not None and not job.round.failures:
        return _on_hang(tally, job.round.hang, now_ms)
    silent = find_silent(state, job, now_ms)
    if silent:
        return _on_silence(state, job, tally, silent, now_ms)
    due_ms = state.deadlines.get((DeadlineKind.GROWTH, job.job_id))
    drain_ms = state.deadlines.get((DeadlineKind.DRAIN, job.job_id))
    if tally.unstarted > 0:
        due_ms = state.deadlines.get((DeadlineKind.START, job.job_id))
        return _on_members(
            state,
            job,
            now_ms,
            WaitKind.START,
            lambda node: node.member and node.state is NodeState.ASSIGNED,
            due_ms,
            "to start",
        )
    meeting = find_meeting(state, job, now_ms)
    if drain_ms is not None:
        return _on_drains(job, tally, drain_ms - now_ms, meeting)
    if due_ms is None:
        return None if meeting is None else _on_meeting(meeting)
    left_ms = max(0, due_ms - now_ms)
    text = f"{_count(tally.newcomers, 'new node')} to be included in the next round"
    text += _besides(meeting)
    return Waiting(WaitKind.GROWTH, tally.newcomers, 0, (), left_ms, _sentence(text, (), left_ms))


def _on_hang(tally: Tally, hang: Hang, now_ms: int) -> Waiting:
    still = describe_in_sentence(max(0, now_ms - hang.since_ms))
    text = f"no worker has made progress for {still}"
    if not hang.is_examined:
        text += "; evidence is being taken"
    elif hang.text:
        text += f": {hang.text}"
    text += f" (rank {hang.rank} on node {hang.name})" if hang.name else ""
    return Waiting(WaitKind.HANG, 0, tally.members, (), None, text)


def _on_meeting(meeting: Meeting) -> Waiting:
    state, text = AwaitedState.NOT_ARRIVED, "has not arrived"
    awaited = tuple(Awaited(name, state, text, meeting.age_ms) for name in meeting.nodes)
    return Waiting(
        WaitKind.BARRIER,
        meeting.arrived,
        meeting.missing,
        awaited[:NAMED_MAX],
        meeting.left_ms,
        _sentence(meeting.text, (), meeting.left_ms),
    )


def _besides(meeting: Meeting | None) -> str:
    return "" if meeting is None else f"; {meeting.text}"


def _on_drains(job: Job, tally: Tally, left_ms: int, meeting: Meeting | None) -> Waiting:
    assert job.round is not None
    awaited = tuple(
        Awaited(
            notice.name,
            AwaitedState.DRAINING,
            f"draining: {notice.reason[:REASON_CHARS_MAX]}",
            None,
        )
        for notice in job.round.notices
        if notice.name is not None
    )[:NAMED_MAX]
    text = f"the round runs until {_count(tally.draining, 'draining node')} can leave"
    text += _besides(meeting)
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
    tally = state.tally(job.job_id)
    number = tally.unstarted if kind is WaitKind.START else tally.pending
    awaited = _name(state.nodes_of(job.job_id), is_awaited, now_ms)
    left_ms = None if due_ms is None else max(0, due_ms - now_ms)
    text = f"{number} of {_count(tally.members, 'node')} still {what}"
    text = _sentence(text, awaited, left_ms, max(0, number - len(awaited)))
    return Waiting(kind, tally.members - number, number, awaited, left_ms, text)


def _name(
    nodes: Iterable[Node], is_awaited: Callable[[Node], bool], now_ms: int
) -> tuple[Awaited, ...]:
    named: list[Awaited] = []
    for node in nodes:
        if is_awaited(node):
            since_ms = None if node.broke_ms is None else now_ms - node.broke_ms
            named.append(Awaited(node.name, *_state_of(node), since_ms))
            if len(named) == NAMED_MAX:
                break
    return tuple(named)


def _name_missing(state: State, job: Job, tally: Tally, needed: int) -> str:
    """Name the explicit node ranks that are missing, if every node has one."""
    first = next(iter(state.nodes_of(job.job_id)), None)
    if first is None or first.identity.node_rank is None:
        return ""  # before anything is computed for every possible node
    taken = [rank for rank in range(job.spec.max_nodes) if (job.job_id, rank) in state.index]
    missing = sorted(set(range(needed)).difference(taken))
    if not missing or not taken or len(taken) < tally.nodes:
        return ""
    named = ", ".join(str(rank) for rank in missing[:NAMED_MAX])
    more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
    return f"; missing --node-rank {named}{more}"


def count_gone(state: State, job: Job) -> int:
    """Return how many nodes of the latest round are gone and have not returned."""
    if job.phase is Phase.CLOSED:
        return 0
    return sum((job.job_id, name) not in state.index for name in job.slots)


def _name_lost(state: State, job: Job, now_ms: int) -> tuple[Awaited, ...]:
    """Name the nodes that are gone and have not returned, by their latest departure."""
    latest = {lost.name: lost for lost in job.lost if (job.job_id, lost.name) not in state.index}
    named: list[Awaited] = []
    for gone in latest.values():
        named.append(Awaited(gone.name, *_state_of_gone(job, gone), now_ms - gone.at_ms))
    return tuple(named)


def _state_of_gone(job: Job, gone: Departure) -> tuple[AwaitedState, str]:
    """Return how a node went, and the same in words, with what keeps it from coming back."""
    state = AwaitedState.LOST if gone.reason is RoundReason.NODE_LOST else AwaitedState.LEFT
    if find_health(job.health, gone.name).cordoned:
        return AwaitedState.CORDONED, f"cordoned, so it may not come back; {state.value}"
    if gone.reason is RoundReason.DRAINED:
        return state, f"drained, so it may not come back; {state.value}"
    return state, state.value


def _name_kept_out(state: State, job: Job, now_ms: int) -> tuple[Awaited, ...]:
    """Name the nodes that are ready and kept out."""
    named: list[Awaited] = []
    for health in job.health:
        session = state.index.get((job.job_id, health.name))
        if session is not None and state.nodes[session].is_clean:
            why = why_kept_out(health, now_ms)
            if why:
                named.append(Awaited(health.name, state_of_kept_out(health), why, None))
    return tuple(named[:NAMED_MAX])


def state_of_kept_out(health: NodeHealth) -> AwaitedState:
    """Return the state of a node that is kept out."""
    return AwaitedState.CORDONED if health.cordoned else AwaitedState.QUARANTINED


_UNSEEN = ": the coordinator has not run long enough to know who was lost before"


def _name_fenced(job: Job, now_ms: int) -> tuple[Awaited, ...]:
    """Name the fenced nodes, the one with the longest wait first."""
    fences = sorted(job.fences, key=lambda fence: -fence.until_ms)
    return tuple(
        Awaited(fence.name, AwaitedState.FENCED, "not known to be clean", None)
        for fence in fences[:NAMED_MAX]
        if fence.until_ms > now_ms
    )


def _state_of(node: Node) -> tuple[AwaitedState, str]:
    """Return the state of an awaited node, and the same in words."""
    if not node.attached:
        return AwaitedState.DISCONNECTED, "disconnected"
    if node.hindrance:
        is_blocked = node.state is NodeState.BLOCKED
        return AwaitedState.BLOCKED if is_blocked else AwaitedState.STOPPING, node.hindrance
    match node.state:
        case NodeState.UNREADY:
            return AwaitedState.STOPPING, "stopping an earlier round"
        case NodeState.ASSIGNED:
            return AwaitedState.NOT_STARTED, "not started"
        case NodeState.READY:
            return AwaitedState.DRAINING, "draining"  # a job waits for no other ready node
        case NodeState.BLOCKED:
            return AwaitedState.BLOCKED, "blocked by processes that survived SIGKILL"
        case _:
            return AwaitedState.STOPPING, "stopping"


def _sentence(
    text: str, awaited: tuple[Awaited, ...], left_ms: int | None, unnamed: int = 0
) -> str:
    """Return a sentence; `unnamed`: how many more nodes it waits for."""
    if awaited:
        text += "; waiting for " + ", ".join(_phrases(awaited, unnamed))
    if left_ms is not None and left_ms >= SHOWN_MS_MIN:
        text += f"; at most {describe_in_sentence(left_ms, 1)} more"
    return text


def _phrases(awaited: tuple[Awaited, ...], unnamed: int) -> Iterable[str]:
    """Yield the awaited nodes in words. Many nodes in one state are named together."""
    groups = dict[str, list[Awaited]]()
    for one in awaited:
        groups.setdefault(_describe_awaited(one), []).append(one)
    last = next(reversed(groups))
    for words, nodes in groups.items():
        more = unnamed if words == last else 0
        if len(nodes) + more <= TOGETHER_MAX:
            yield from (_phrase(one) for one in nodes)
            continue
        names = ", ".join(one.name for one in nodes[:TOGETHER_MAX])
        yield f"{names} and {len(nodes[TOGETHER_MAX:]) + more:,} more ({words})"


def _phrase(node: Awaited) -> str:
    return f"{node.name} ({_describe_awaited(node)})"


def _describe_awaited(node: Awaited) -> str:
    if node.since_ms is None:
        return node.text
    return f"{node.text} {describe_in_sentence(node.since_ms)} ago"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
