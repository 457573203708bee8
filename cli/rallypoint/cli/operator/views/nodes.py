"""The nodes of a job as rows: those that need attention first, then the others, each by rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter

from msgspec import Struct

from rallypoint.cli.operator.views.words import (
    describe_count,
    describe_duration,
    describe_exit,
    describe_node,
    describe_ranks,
    style,
)
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.wire.durations import to_ms

COLUMNS = ("NODE", "RANKS", "STATE", "WORKERS", "ADDRESS", "NOTE")
NOTE = "NOTE"
SILENT_BEATS = 3
"""Heartbeats that are missing before a row says so."""
LAST = 2**32
"""More than any rank."""
NORMAL = ("running", "succeeded", "spare", "ready")
"""States that need no attention."""
DEPARTURES = {
    job_pb2.DEPARTURE_KIND_LOST: "lost",
    job_pb2.DEPARTURE_KIND_LEFT: "left",
    job_pb2.DEPARTURE_KIND_DRAINED: "drained",
    job_pb2.DEPARTURE_KIND_FINISHED: "finished",
}


class Chosen(Struct, frozen=True):
    """The rows that are shown, and a line about the others."""

    rows: list[Sequence[object]]
    rest: str
    """The others in words; empty: there are none."""


def choose_rows(
    job: job_pb2.Job, nodes: Sequence[node_pb2.Node], most: int | None = None
) -> Chosen:
    """Return a row for each node: those that need attention, the others, those that are gone.

    Args:
        job: what they belong to.
        nodes: all that are known.
        most: rows; None: no limit. Beyond it, nodes that need attention win over the others.
    """
    gone = _departures(job, nodes)
    known = sorted(((_order(one), describe_node(one), one) for one in nodes), key=itemgetter(0))
    known.sort(key=_needs_none)
    shown, gone_count = known, max(job.gone_count, len(gone))
    if most is not None and len(known) + len(gone) > most:
        gone = gone[-max(1, most // 4, most - len(known)) :]
        shown = known[: max(0, most - len(gone))]
    rows: list[Sequence[object]] = [_row(job, one, state) for _, state, one in shown]
    rows += [_gone_row(one) for one in gone]
    states = Counter(state for _, state, _ in known)
    states.subtract(state for _, state, _ in shown)
    count = states.total() + max(0, job.node_count - len(known))
    if len(known) < job.node_count:
        states = Counter()
    return Chosen(rows, _describe_rest(count, states, gone_count - len(gone)))


def _order(node: node_pb2.Node) -> int:
    """Return the place of a node: its group rank, or behind all that have one."""
    return node.assignment.group_rank if node.HasField("assignment") else LAST


def _needs_none(known: tuple[int, str, node_pb2.Node]) -> bool:
    """Return whether a node needs no attention."""
    _, state, node = known
    return not (state not in NORMAL or node.HasField("drain_time_left") or node.HasField("health"))


def _row(job: job_pb2.Job, node: node_pb2.Node, state: str) -> Sequence[object]:
    ranks = "-"
    if node.HasField("assignment"):
        ranks = describe_ranks(node.assignment.first_rank, node.assignment.local_world_size)
    running = sum(one.state == node_pb2.WORKER_STATE_RUNNING for one in node.workers)
    return (
        node.name,
        ranks,
        style(state),
        f"{running}/{node.local_world_size}",
        node.address,
        _note(node, job),
    )


def _gone_row(gone: job_pb2.Departure) -> Sequence[object]:
    state = DEPARTURES.get(gone.kind, "gone")
    ago = f"{describe_duration(gone.age)} ago"
    note = f"{ago}: {gone.text}" if gone.text else ago
    return (gone.node_name, "-", style(state), "-", "-", note)


def _note(node: node_pb2.Node, job: job_pb2.Job) -> str:
    """Return what is unusual about a node."""
    notes = list[str]()
    if node.HasField("drain_time_left"):
        notes.append(f"draining, {describe_duration(node.drain_time_left)} left")
    if node.HasField("health"):
        notes += _describe_health(node.health)
    for worker in node.workers:
        if worker.HasField("exit") and (worker.exit.exit_code or worker.exit.HasField("signal")):
            notes.append(f"rank {worker.rank}: {describe_exit(worker.exit)}")
            break
    if to_ms(node.silent_for) > SILENT_BEATS * max(1_000, to_ms(job.heartbeat_interval)):
        notes.append(f"silent for {describe_duration(node.silent_for)}")
    return "; ".join(notes)


def _describe_health(health: node_pb2.NodeHealth) -> list[str]:
    reason = f": {health.reason}" if health.reason else ""
    if health.cordoned:
        return [f"cordoned{reason}"]
    if health.HasField("quarantine_time_left"):
        return [f"quarantined for {describe_duration(health.quarantine_time_left)} more{reason}"]
    return [describe_count(health.failure_count, "failure")] if health.failure_count else []


def _departures(job: job_pb2.Job, nodes: Sequence[node_pb2.Node]) -> list[job_pb2.Departure]:
    """Return the latest departure of each node that has not come back, the latest last."""
    here = {one.name for one in nodes}
    latest = {one.node_name: one for one in job.departures if one.node_name not in here}
    return [one for one in latest.values() if one.kind != job_pb2.DEPARTURE_KIND_FINISHED]


def _describe_rest(count: int, states: Counter[str], gone: int) -> str:
    """Return how many nodes are not shown, in words.

    Args:
        count: nodes of the job.
        states: theirs; empty if they are not known.
        gone: nodes that are gone.
    """
    texts = list[str]()
    if count:
        parts = ", ".join(f"{number:,} {state}" for state, number in states.most_common() if number)
        how = f": {parts}" if parts else ""
        texts.append(f"and {describe_count(count, 'more node')}{how}; --all shows each")
    if gone > 0:
        texts.append(f"and {describe_count(gone, 'more node')} that are gone")
    return "; ".join(texts)
