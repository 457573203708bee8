"""The notes of a turn: what its steps have changed of the durable facts of jobs and nodes.

The value of each before the turn is compared with the one after it. So a replay gives the state,
whatever the steps did, and a thousand failures in one turn are one note. What workers share, keys
and barriers, and events have other records, which the steps make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field

from rallypoint.server.core.memory.changes import (
    Places,
    begins_round,
    find_job_changes,
    find_node_changes,
    in_round,
    places_of,
    with_arrival,
)
from rallypoint.server.core.memory.durable import durable_job, durable_node, is_durably_equal
from rallypoint.server.core.memory.replay import JobSnapshot, JournalRecord
from rallypoint.server.core.messages.records import (
    JobForgotten,
    JobNoted,
    NodeJoined,
    NodeNoted,
    NodeRemoved,
)
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.state.state import Delta, State


class ValuesBefore(Struct):
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


def note_changes(
    before: ValuesBefore, records: Iterable[JournalRecord], state: State
) -> list[JournalRecord]:
    """Return the notes of a turn, which follow its records.

    Args:
        before: what the turn has changed, as it was.
        records: of the turn, in order.
        state: after the turn.
    """
    forgotten = {record.job_id for record in records if isinstance(record, JobForgotten)}
    jobs = {job_id: None if job_id in forgotten else job for job_id, job in before.jobs.items()}
    moves = _find_moves(jobs, state)
    notes: list[JournalRecord] = []
    arrivals: dict[JobId, int] = {}
    for session, was in before.nodes.items():
        now = state.nodes.get(session)
        if was is not None and was.job_id in forgotten:
            was = None
        if was is None and now is not None:
            notes.append(NodeJoined(durable_node(now)))
            arrivals[now.job_id] = max(now.arrival, arrivals.get(now.job_id, 0))
        elif was is not None and now is None:
            notes.append(NodeRemoved(was.job_id, session))
        elif was is not None and now is not None and was is not now:
            note = _note_node(was, now, moves.get(now.job_id))
            notes += [] if note is None else [note]
    return [*_note_jobs(jobs, arrivals, state), *notes]


_Move = tuple[int, Places]
"""Number of the round that has begun, 0 when there is none, and the places of its members."""


def _find_moves(jobs: Mapping[JobId, Job | None], state: State) -> dict[JobId, _Move]:
    """Return the jobs that have another round than before, or none."""
    moves: dict[JobId, _Move] = {}
    for job_id, was in jobs.items():
        now = state.jobs.get(job_id)
        if was is not None and now is not None and begins_round(was, now):
            moves[job_id] = 0 if now.round is None else now.round.header.number, places_of(now)
    return moves


def _note_node(was: Node, now: Node, move: _Move | None) -> NodeNoted | None:
    if move is None:
        if is_durably_equal(was, now):
            return None
        return find_node_changes(durable_node(was), durable_node(now))
    return find_node_changes(in_round(durable_node(was), *move), durable_node(now))


def _note_jobs(
    jobs: Mapping[JobId, Job | None], arrivals: Mapping[JobId, int], state: State
) -> Iterator[JobNoted | JobSnapshot]:
    for job_id, was in jobs.items():
        now = state.jobs.get(job_id)
        if now is None or now is was:
            continue
        if was is None:
            yield JobSnapshot(durable_job(now))
            continue
        if job_id in arrivals:
            was = with_arrival(was, arrivals[job_id])
        changes = find_job_changes(was, now)
        if changes is not None:
            yield JobNoted(job_id, changes)


def note_everything(before: ValuesBefore, state: State) -> list[JournalRecord]:
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
