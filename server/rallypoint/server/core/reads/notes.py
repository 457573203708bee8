"""The notes of a turn: the durable facts that its steps have changed and that no record says.

For every job and node that a turn has changed, the value before the turn, with what the turn's
records mean for it, is compared with the value after it. So a replay of records and notes gives the
state, whatever the steps did: a thousand failures in one turn are one note.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.messages.records import (
    JobForgotten,
    JobNoted,
    NodeJoined,
    NodeNoted,
    NodeRemoved,
    NodeSucceeded,
    RoundSealed,
    RoundSettled,
    RunClosed,
    RunOpened,
)
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.reads.changes import Inexpressible, find_changes
from rallypoint.server.core.reads.durable import (
    NodeFacts,
    durable_job,
    durable_node,
    facts_of,
    has_same_identity,
)
from rallypoint.server.core.reads.job_records import JobRecord, apply_job_record, open_from
from rallypoint.server.core.reads.node_records import (
    NodeRecord,
    Places,
    after_success,
    apply_node_record,
    places_of,
)
from rallypoint.server.core.reads.replay import JobSnapshot, JournalRecord
from rallypoint.server.core.state.state import Delta, State


class Before(Struct):
    """The first value in the turn of each job and node that the turn may have changed."""

    jobs: dict[JobId, Job | None] = field(default_factory=dict)
    """None: there was no such job."""
    nodes: dict[SessionId, Node | None] = field(default_factory=dict)

    def keep(self, state: State, delta: Delta) -> None:
        """Keep the values that `delta`, which is about to be applied, changes."""
        for job_id in delta.jobs:
            if job_id not in self.jobs:
                self.jobs[job_id] = state.jobs.get(job_id)
        for session in delta.nodes:
            if session not in self.nodes:
                self.nodes[session] = state.nodes.get(session)

    def keep_job(self, state: State, job_id: JobId) -> None:
        """Keep a job, which is about to be evicted, with its nodes."""
        self.jobs.setdefault(job_id, state.jobs.get(job_id))
        for session, node in state.nodes.items():
            if node.job_id == job_id:
                self.nodes.setdefault(session, node)


class _Decided(Struct):
    """The records of a turn about one job."""

    of_job: list[RunOpened | JobForgotten | JobRecord] = field(default_factory=list)
    of_nodes: list[tuple[NodeRecord, Places]] = field(default_factory=list)
    """Those that may concern every node."""
    succeeded: dict[SessionId, int] = field(default_factory=dict)
    """Nodes that have succeeded: how many of `of_nodes` came before."""
    is_forgotten: bool = False
    """A record has forgotten the job; its nodes are forgotten with it."""
    next_arrival: int = 0
    """After the nodes that have joined."""


def note_changes(
    before: Before, records: Sequence[JournalRecord], state: State
) -> list[JournalRecord]:
    """Return the notes of a turn, which follow its records.

    Args:
        before: what the turn has changed, as it was.
        records: of the turn, in order.
        state: after the turn.
    """
    if not before.jobs and not before.nodes:
        return []
    decided = _group(records)
    notes: list[JournalRecord] = []
    for session, was in before.nodes.items():
        now = state.nodes.get(session)
        if was is not now:
            note = _note_node(was, now, decided)
            notes += [] if note is None else [note]
    for job_id, was_job in before.jobs.items():
        now_job = state.jobs.get(job_id)
        if now_job is not None and now_job is not was_job:
            note_of_job = _note_job(was_job, now_job, decided.get(job_id) or _Decided())
            notes += [] if note_of_job is None else [note_of_job]
    return notes


def note_whole(before: Before, state: State) -> list[JournalRecord]:
    """Return everything about what a turn has changed, for when its notes cannot be found.

    Args:
        before: what the turn has changed, as it was.
        state: after the turn.
    """
    jobs = (state.jobs.get(job_id) for job_id in before.jobs)
    notes: list[JournalRecord] = [JobSnapshot(durable_job(job)) for job in jobs if job is not None]
    for session, was in before.nodes.items():
        now = state.nodes.get(session)
        if now is not None:
            notes.append(NodeJoined(durable_node(now)))
        elif was is not None:
            notes.append(NodeRemoved(was.job_id, session))
    return notes


def _group(records: Iterable[JournalRecord]) -> dict[JobId, _Decided]:
    decided: dict[JobId, _Decided] = {}
    for record in records:
        if isinstance(record, RunOpened | JobForgotten | JobRecord | NodeSucceeded):
            of_job = decided.setdefault(record.job_id, _Decided())
            if isinstance(record, NodeSucceeded):
                of_job.succeeded[record.session] = len(of_job.of_nodes)
                continue
            of_job.of_job.append(record)
            if isinstance(record, RoundSealed | RoundSettled | RunClosed):
                of_job.of_nodes.append((record, places_of(record)))
            if isinstance(record, JobForgotten):
                of_job.is_forgotten = True
    return decided


def _note_node(
    was: Node | None, now: Node | None, decided: dict[JobId, _Decided]
) -> NodeJoined | NodeRemoved | NodeNoted | None:
    known = now or was
    assert known is not None
    of_job = decided.get(known.job_id)
    if of_job is not None and of_job.is_forgotten:
        was = None
    if now is None:
        return None if was is None else NodeRemoved(was.job_id, was.session)
    if was is None or not has_same_identity(was, now):
        of_job = decided.setdefault(now.job_id, _Decided())
        of_job.next_arrival = max(of_job.next_arrival, now.arrival + 1)
        return NodeJoined(durable_node(now))
    expected, facts = facts_of(was), facts_of(now)
    if of_job is not None:
        expected = _expect(expected, was, of_job)
    if expected == facts:
        return None
    return NodeNoted(now.job_id, now.session, **facts._asdict())


def _expect(facts: NodeFacts, node: Node, decided: _Decided) -> NodeFacts:
    """Return the facts of a node as the turn's records leave them."""
    succeeded_at = decided.succeeded.get(node.session)
    for at, (record, places) in enumerate(decided.of_nodes):
        if at == succeeded_at:
            facts = after_success(facts)
        facts = apply_node_record(facts, node.name, record, places)
    return after_success(facts) if succeeded_at == len(decided.of_nodes) else facts


def _note_job(was: Job | None, now: Job, decided: _Decided) -> JobNoted | JobSnapshot | None:
    try:
        expected = _apply_all(was, decided)
        changes = None if expected is None else find_changes(expected, now)
    except (Inexpressible, BrokenInvariant):
        expected = changes = None
    if expected is None:
        return JobSnapshot(durable_job(now))
    return None if changes is None else JobNoted(now.job_id, changes)


def _apply_all(was: Job | None, decided: _Decided) -> Job | None:
    """Return the job as the turn's records leave it."""
    expected = was
    for record in decided.of_job:
        if isinstance(record, RunOpened):
            expected = open_from(expected, record)
        elif isinstance(record, JobForgotten):
            expected = None
        elif expected is not None:
            expected = apply_job_record(expected, record)
    if expected is None or expected.next_arrival >= decided.next_arrival:
        return expected
    return replace(expected, next_arrival=decided.next_arrival)
