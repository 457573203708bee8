"""What torch's Flight Recorder knows, in short: how far a rank is in each process group. Pure.

The recorder is a ring of the latest operations. Facts about version 2.10 of its format, which torch
2.13 to 2.15 have:

  * With gloo the state of an entry stays "scheduled": what has ended is "retired".
  * `pg_status` counts all operations, also sends and receives, so it does not number collectives.
  * The ranks of a group are global ones. With gloo its name is missing beside them, and each group
    replaces the one before. So they are known of the group of all ranks, and with NCCL of each.
  * A group that takes the name of a destroyed one has another `pg_id`, counts from 1 again, and the
    ring has both.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from rallypoint.v1 import evidence_pb2, verdict_pb2

GROUPS_MAX = 64
"""The groups with the latest operations."""
LATEST_MAX = 4
"""Collectives of a group that are kept."""
RANGES_MAX = 256
NAME_CHARS_MAX = 256
OPERATION_CHARS_MAX = 128
SIZES_CHARS_MAX = 256
DTYPES_CHARS_MAX = 128
RANKS_CHARS_MAX = 1 << 20
NUMBER_MAX = (1 << 63) - 1
_DEFAULT = "default_pg"
"""What torch calls the group of all ranks."""
_ENDED = "completed"


class Entry(Struct, frozen=True):
    """An operation in the ring."""

    pg_id: int = 0
    process_group: tuple[str, str] = ("", "")
    """Name and description."""
    collective_seq_id: int = 0
    profiling_name: str = ""
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_sizes: list[list[int]] = []
    is_p2p: bool = False
    retired: bool = False
    state: str = ""
    record_id: int = 0
    """Grows with each operation, also when the ring forgets old ones."""
    time_created_ns: int | None = None
    """Wall clock of the host, like the next two."""
    time_discovered_started_ns: int | None = None
    """Nothing or 0: not started, or not known, as with gloo."""
    time_discovered_completed_ns: int | None = None


class Group(Struct, frozen=True):
    """A process group."""

    name: str = ""
    ranks: str = ""
    """Such as "[0, 1, 2]"."""


class Recording(Struct, frozen=True):
    """What a worker server shows."""

    entries: list[Entry] = []
    """The oldest first."""
    pg_config: dict[str, Group] = {}


def parse_recording(data: bytes, world_size: int) -> list[evidence_pb2.GroupProgress]:
    """Return how far a rank has come, the group with the latest collective first.

    Args:
        data: JSON of the recorder.
        world_size: how many ranks there are.

    Raises:
        ValueError: it is no JSON, or of another form.
    """
    recording = _decode(data)
    groups: dict[str, evidence_pb2.GroupProgress] = {}
    seen: dict[str, Entry | None] = {}
    """The oldest entry of each group so far; None: older ones belong to a destroyed group."""
    for entry in reversed(recording.entries):
        if entry.is_p2p or not 0 < entry.collective_seq_id <= NUMBER_MAX:
            continue
        name, description = entry.process_group
        group = groups.get(name)
        if group is None:
            if len(groups) == GROUPS_MAX:
                continue
            group = groups[name] = evidence_pb2.GroupProgress(
                name=name[:NAME_CHARS_MAX], description=description[:NAME_CHARS_MAX]
            )
            group.members.extend(_members(recording, name, description, world_size))
        newer = seen.get(name, entry)
        if newer is not None and _precedes(entry, newer):
            seen[name] = entry
            _note(group, entry)
        else:
            seen[name] = None
    return list(groups.values())


def awaits_peer(data: bytes) -> bool:
    """Return whether a rank has begun a send or a receive that has not ended.

    Raises:
        ValueError: it is no JSON, or of another form.
    """
    return any(
        entry.is_p2p and not (entry.retired or entry.state == _ENDED)
        for entry in _decode(data).entries
    )


class Mark(Struct, frozen=True):
    """How far a recorder has come; another mark means progress."""

    has_groups: bool = False
    """There are process groups."""
    newest: int | None = None
    """Number of the latest operation; None: there was none."""
    ended: int = 0
    """Operations in the ring that have ended."""
    latest_ns: int = 0
    """When the latest one was entered, started or completed, by the wall clock; 0: not known."""

    def merged(self, other: Mark) -> Mark:
        """Return how far both have come together."""
        newest = [one.newest for one in (self, other) if one.newest is not None]
        return Mark(
            self.has_groups or other.has_groups,
            sum(newest) if newest else None,
            self.ended + other.ended,
            max(self.latest_ns, other.latest_ns),
        )


def parse_mark(data: bytes) -> Mark:
    """Return how far a recorder has come: collectives, sends and receives count alike.

    Raises:
        ValueError: it is no JSON, or of another form.
    """
    recording = _decode(data)
    newest, ended, latest_ns = None, 0, 0
    for entry in recording.entries:
        newest = max(newest or 0, entry.record_id)
        ended += entry.retired or entry.state == _ENDED
        latest_ns = max(
            latest_ns,
            entry.time_created_ns or 0,
            entry.time_discovered_started_ns or 0,
            entry.time_discovered_completed_ns or 0,
        )
    return Mark(bool(recording.pg_config), newest, ended, latest_ns)


def _decode(data: bytes) -> Recording:
    try:
        return msgspec.json.decode(data, type=Recording)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _precedes(entry: Entry, newer: Entry) -> bool:
    """Return whether an entry may be of the same group as a newer one of the same name."""
    return entry.pg_id == newer.pg_id and entry.collective_seq_id <= newer.collective_seq_id


def _note(group: evidence_pb2.GroupProgress, entry: Entry) -> None:
    number = entry.collective_seq_id
    group.entered = max(group.entered, number)
    if entry.retired or entry.state == _ENDED:
        group.completed = max(group.completed, number)
    # One collective may be several operations, such as those of a coalesced one.
    if len(group.latest) < LATEST_MAX and all(one.number != number for one in group.latest):
        group.latest.append(
            evidence_pb2.Collective(
                number=number,
                operation=entry.profiling_name[:OPERATION_CHARS_MAX],
                sizes=_as_text(entry.input_sizes or entry.output_sizes)[:SIZES_CHARS_MAX],
                dtypes=", ".join(entry.input_dtypes[:DTYPES_CHARS_MAX])[:DTYPES_CHARS_MAX],
            )
        )


def _as_text(sizes: list[list[int]]) -> str:
    return str(sizes[:SIZES_CHARS_MAX]).replace(" ", "") if sizes else ""


def _members(
    recording: Recording, name: str, description: str, world_size: int
) -> list[verdict_pb2.RankRange]:
    config = recording.pg_config.get(name) if name else None
    if config is not None and config.ranks:
        return _ranges(_parse_ranks(config.ranks, world_size))
    return [verdict_pb2.RankRange(first=0, last=world_size - 1)] if description == _DEFAULT else []


def _parse_ranks(text: str, world_size: int) -> list[int]:
    try:
        ranks = msgspec.json.decode(text[:RANKS_CHARS_MAX], type=list[int])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return []
    return sorted({rank for rank in ranks if 0 <= rank < world_size})


def _ranges(ranks: Iterable[int]) -> list[verdict_pb2.RankRange]:
    """Return ascending ranks as ranges; none if there are too many, rather than a part of them."""
    ranges: list[verdict_pb2.RankRange] = []
    for rank in ranks:
        if ranges and ranges[-1].last == rank - 1:
            ranges[-1].last = rank
        elif len(ranges) == RANGES_MAX:
            return []
        else:
            ranges.append(verdict_pb2.RankRange(first=rank, last=rank))
    return ranges
