"""A barrier: who has arrived, who is expected, and how its latest generation ended.

A generation is one use of the name: it ends when everyone has arrived, or fails for all. An
arrival after that begins the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from typing import NamedTuple

from msgspec import Struct

from rallypoint.server.core.model.ids import JobId

OPEN_MAX = 256
"""Barriers of a job at which someone waits."""
NAMES_MAX = 1_024
"""Names of a job that are in use or remembered; beyond that the oldest is forgotten."""
ENDS_MAX = 4
"""Ends of one name that are remembered, and generations of which all arrivals are."""
WEIGHT_MAX = 67_108_864
"""What the barriers of a job may weigh, with what is remembered of them."""
RANK_WEIGHT = 4_096
"""How much more they may weigh for each rank of its round."""
PARTICIPANTS_MAX = 1_024
"""Participants that a barrier may name. Each of them sends all names, so a larger barrier is one of
all ranks, or of a count."""
PAYLOADS_BYTES_MAX = 131_072
"""Bytes of all payloads of a generation: everyone gets them all."""
REMEMBERED_MS = 60_000
"""How long the end of a generation is remembered for arrivals that are sent again."""


class ParticipantKind(IntEnum):
    """What a participant is. The value orders the participants of a barrier."""

    RANK = 0
    NODE = 1
    NAME = 2


class Participant(NamedTuple):
    """Who arrives. Ordered: ranks by number, then nodes, then free names."""

    kind: ParticipantKind
    rank: int
    """Global rank; 0 for other kinds."""
    name: str
    """Node name or free name; empty for ranks."""


class BarrierKey(NamedTuple):
    """The name of a barrier in its scope."""

    job_id: JobId
    run: int
    round: int
    """0: it belongs to the run, and survives rounds."""
    name: str


class Expected(Struct, frozen=True):
    """Who must arrive."""

    count: int
    participants: tuple[Participant, ...] = ()
    """In order, each once. Empty: any `count`, or all of a kind."""
    all_of: ParticipantKind | None = None
    """RANK or NODE: everyone of that kind in the round."""

    def names(self, participant: Participant) -> bool:
        """Return whether this participant is among those named."""
        place = bisect_left(self.participants, participant)
        return self.participants[place : place + 1] == (participant,)


NO_ONE = Expected(0)


class Arrival(Struct, frozen=True):
    """One participant at a barrier."""

    request_id: str
    """The same for every attempt of one arrival."""
    round: int
    """Round of the worker that speaks for the participant."""
    at_ms: int
    payload: bytes = b""


class BreakReason(Enum):
    """Why a generation failed."""

    LOST = "lost"  # a participant cannot come any more
    ROUND_STOPPED = "round stopped"
    OVERDUE = "overdue"


class Break(Struct, frozen=True):
    """A generation that failed for everyone."""

    reason: BreakReason
    text: str
    """What happened, in words."""
    missing: tuple[Participant, ...] = ()
    """Expected participants that had not arrived, at most NAMED_MAX, as far as they are known."""
    missing_count: int = 0
    lost: tuple[Participant, ...] = ()
    """Participants that cannot come, at most NAMED_MAX."""


NAMED_MAX = 64
"""Participants that a failure names."""


class Ended(Struct, frozen=True):
    """The latest generation that has ended."""

    generation: int
    at_ms: int
    arrivals: tuple[tuple[Participant, Arrival], ...]
    """In order of the participants."""
    broken: Break | None = None
    """None: it was released."""

    def has(self, participant: Participant, request_id: str) -> bool:
        """Return whether this arrival was one of them."""
        place = bisect_left(self.arrivals, participant, key=_who)
        if place == len(self.arrivals):
            return False
        who, arrival = self.arrivals[place]
        return who == participant and arrival.request_id == request_id


def count_arrivals(
    counted: Mapping[Participant, tuple[str, int]],
    generation: int,
    arrivals: Iterable[tuple[Participant, Arrival]],
) -> dict[Participant, tuple[str, int]]:
    """Return the latest arrival of each participant after the end of a generation.

    Args:
        counted: before it.
        generation: that has ended.
        arrivals: of that generation.

    Returns: The request id and the generation of each. Of free names, which may be new ones each
        time, no more than PARTICIPANTS_MAX, but always those of the latest ENDS_MAX generations.
    """
    kept = dict(counted)
    kept.update((who, (arrival.request_id, generation)) for who, arrival in arrivals)
    names = [(one[1], who) for who, one in kept.items() if who.kind is ParticipantKind.NAME]
    if len(names) > PARTICIPANTS_MAX:
        for last, who in sorted(names)[:-PARTICIPANTS_MAX]:
            if last <= generation - ENDS_MAX:
                del kept[who]
    return kept


def _who(arrival: tuple[Participant, Arrival]) -> Participant:
    return arrival[0]


class Barrier(Struct, frozen=True):
    """A barrier that is open, or remembered."""

    key: BarrierKey
    generation: int
    """The one that is open, else the latest; from 1."""
    expected: Expected = NO_ONE
    """By those who have arrived."""
    opened_ms: int | None = None
    """When the first participant arrived; None while no generation is open."""
    deadline_ms: int = 0
    """When the open generation fails: the earliest of what its participants asked for."""
    arrived: int = 0
    round: int = 0
    """Round of all who have arrived, also at a barrier of the run."""
    payload_bytes: int = 0
    ends: tuple[Ended, ...] = ()
    """The latest generations that have ended, oldest first, as far as they are remembered."""

    @property
    def is_open(self) -> bool:
        """True from the first arrival of a generation until its end."""
        return self.opened_ms is not None

    def closed(self, ended: Ended) -> Barrier:
        """Return the barrier after the end of its open generation."""
        ends = (*self.ends, ended)[-ENDS_MAX:]
        return Barrier(self.key, self.generation, ends=ends)
