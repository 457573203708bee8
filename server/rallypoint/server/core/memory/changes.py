"""The difference between two values of a job or a node, as a record holds it, and its application.

Every durable field takes part, as its struct has it. Some facts follow from others: who has a place
in a job's round is a member, in its slot, and a node that joins is the next one in the order of
arrival. So a round costs a record, and not one for each node.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import fields, replace

from rallypoint.server.core.memory.durable import default_of, durable_round
from rallypoint.server.core.messages.records import JobChanges, NodeNoted, RoundChanges, Splice
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node, NodeState
from rallypoint.server.core.model.round import Assignment, Round
from rallypoint.server.core.model.volatile import volatile_fields
from rallypoint.server.core.rounds.ranks import slots_of
from rallypoint.server.core.verdicts.blame import find_verdict, with_older_failures

_Value = TypeVar("_Value", bound=Struct)
Places = Mapping[NodeName, Assignment]


class _Field(NamedTuple):
    name: str
    default: Any
    is_list: bool


@cache
def _fields_of(kind: Any) -> dict[str, _Field]:
    """Return the durable fields of a struct, by name."""
    hints, volatile = get_type_hints(kind), volatile_fields(kind)
    found = (
        _Field(
            info.name,
            default_of(info),
            get_origin(hint := hints[info.name]) is tuple and get_args(hint)[1:] == (...,),
        )
        for info in fields(kind)
        if info.name not in volatile
    )
    return {field.name: field for field in found}


# --- What follows ---


def begins_round(was: Job, now: Job) -> bool:
    """Return whether the round of a job is another one than before, or none."""
    old, new = was.round, now.round
    if old is None or new is None:
        return old is not new
    is_same = old.header is new.header or old.header == new.header
    return not (is_same and (old.members is new.members or old.members == new.members))


def places_of(job: Job) -> Places:
    """Return the places of the members of the job's round, by name."""
    members = () if job.round is None else job.round.members
    return {member.name: member.assignment for member in members}


def in_round(node: Node, number: int, places: Places) -> Node:
    """Return a durable node once another round of its job has begun, or none is left.

    Args:
        node: as it was.
        number: of the round; 0: there is none.
        places: of its members.
    """
    place = places.get(node.name)
    if place is not None:
        return replace(
            node, state=NodeState.UNREADY, member=True, assignment=place, last_round=number
        )
    if not node.member:
        return node
    is_blocked = node.state is NodeState.BLOCKED
    state = NodeState.BLOCKED if is_blocked else NodeState.UNREADY
    return replace(node, state=state, member=False, assignment=None)


def with_arrival(job: Job, arrival: int) -> Job:
    """Return the job once a node has joined, with its place in the order of arrival."""
    return replace(job, next_arrival=max(job.next_arrival, arrival + 1))


def _slots(round: Round) -> tuple[NodeName, ...]:
    return slots_of(round.members, round.header.group_world_size)


def _in_changed_round(job: Job, round: Round) -> Job:
    """Return the job with other facts of its round; its verdict follows if other workers failed."""
    was = job.round
    is_judged = was is not None and was.failure_count != round.failure_count
    verdict = find_verdict(round) if is_judged else None
    return replace(job, round=round, verdict=verdict or job.verdict)


def _find_aged_ms(before: Round, after: Round) -> int:
    """Return by how much all failures that were known have become older, if they have."""
    if before.failures is after.failures or not (before.failures and after.failures):
        return 0
    old, new = before.failures[0].exit, after.failures[0].exit
    return max(0, (old.at_ms or 0) - (new.at_ms or 0))


# --- Differences ---


def find_job_changes(before: Job, after: Job) -> JobChanges | None:
    """Return what has changed in a job, or None for nothing; volatile facts do not matter."""
    round_changes: RoundChanges | None = None
    if begins_round(before, after):
        round = None if after.round is None else durable_round(after.round)
        slots = before.slots if round is None else _slots(round)
        before = replace(before, slots=slots)
        after = replace(after, round=round)
    elif before.round is not after.round:
        assert before.round is not None and after.round is not None, after.job_id
        aged_ms = _find_aged_ms(before.round, after.round)
        found = _compare(with_older_failures(before.round, aged_ms), after.round, Round)
        round_changes = RoundChanges(*found, aged_ms) if aged_ms or any(found) else None
        before = _in_changed_round(before, after.round)
    changed = _compare(before, after, Job)
    if round_changes is None and not any(changed):
        return None
    return JobChanges(*changed, round_changes)


def with_job_changes(job: Job, changes: JobChanges) -> Job:
    """Return the job with its changes.

    Raises:
        ValueError: for a field that this version does not know.
    """
    new = changes.values.get("round")
    if new is not None:
        job = replace(job, slots=_slots(new))
    if changes.round is not None:
        assert job.round is not None, job.job_id
        one = changes.round
        older = with_older_failures(job.round, one.aged_ms)
        job = _in_changed_round(job, _changed(older, one.values, one.cleared, one.spliced))
    return _changed(job, changes.values, changes.cleared, changes.spliced)


def find_node_changes(before: Node, after: Node) -> NodeNoted | None:
    """Return what has changed in a node, or None for nothing; both are durable."""
    values, cleared, spliced = _compare(before, after, Node)
    assert not spliced, "a node has no lists"
    return NodeNoted(after.job_id, after.session, values, cleared) if values or cleared else None


def with_node_changes(node: Node, changes: NodeNoted) -> Node:
    """Return the node with its changes.

    Raises:
        ValueError: for a field that this version does not know.
    """
    return _changed(node, changes.values, changes.cleared, ())


def _compare(
    before: Any, after: Any, kind: Any
) -> tuple[dict[str, Any], tuple[str, ...], tuple[Splice, ...]]:
    """Return the new values, the names of the cleared fields, and the lists that are kept."""
    values: dict[str, Any] = {}
    cleared: list[str] = []
    spliced: list[Splice] = []
    for name, default, is_list in _fields_of(kind).values():
        old, new = getattr(before, name), getattr(after, name)
        if old is new or old == new:
            continue
        if new == default:
            cleared.append(name)
            continue
        splice = _find_splice(name, old, new) if is_list else None
        if splice is not None:
            spliced.append(splice)
            new = new[splice.kept : len(new) - splice.tail]
        if new or not is_list:
            values[name] = new
    return values, tuple(cleared), tuple(spliced)


def _find_splice(name: str, old: tuple[object, ...], new: tuple[object, ...]) -> Splice | None:
    """Return what a new list keeps of the old one, at its beginning and at its end; None: nothing.

    Entries may go at the beginning, as of a list with a limit.
    """
    dropped = next((at for at, one in enumerate(old) if one is new[0] or one == new[0]), 0)
    left = old[dropped:]
    kept = _count_equal(left, new)
    tail = _count_equal(left[: kept - len(left) - 1 : -1], new[: kept - len(new) - 1 : -1])
    return Splice(name, dropped, kept, tail) if kept or tail else None


def _count_equal(one: tuple[object, ...], other: tuple[object, ...]) -> int:
    """Return how many entries are equal before the first ones that differ."""
    count = 0
    for mine, yours in zip(one, other, strict=False):
        if mine is not yours and mine != yours:
            break
        count += 1
    return count


def _changed(
    known: _Value, values: Mapping[str, Any], cleared: tuple[str, ...], spliced: tuple[Splice, ...]
) -> _Value:
    durable = _fields_of(type(known))
    after = dict(values)
    for name in cleared:
        if name not in durable:
            raise ValueError(f"unknown field {name}")
        after[name] = durable[name].default
    for splice in spliced:
        name = splice.field
        if name not in durable or not durable[name].is_list:
            raise ValueError(f"unknown list {name}")
        old = getattr(known, name)
        kept, end = old[splice.dropped :][: splice.kept], old[len(old) - splice.tail :]
        after[name] = (*kept, *values.get(name, ()), *end)
    return replace(known, **after)
