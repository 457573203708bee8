"""What the workers of a round did at one time, and what that says together.

The structs mirror the messages of evidence.proto, field by field.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

GROUPS_MAX = 64
"""Groups of equal stacks that evidence keeps; their lines fill two screens."""
RANGES_MAX = 64
"""Ranges of ranks that a group or a finding keeps; ranks beyond them are only counted."""
FINDINGS_MAX = 16
"""Findings that evidence keeps: a person reads the first few."""


class ProcessState(Enum):
    """What a process does, as the kernel says."""

    UNSPECIFIED = "unspecified"
    RUNNING = "running"
    SLEEPING = "sleeping"
    UNINTERRUPTIBLE = "uninterruptible"
    STOPPED = "stopped"
    TRACED = "traced"
    ENDED = "ended"


class RankRange(Struct, frozen=True):
    """Ranks from `first` to `last`, both included."""

    first: int
    last: int


class Frame(Struct, frozen=True):
    """One function on a stack."""

    function: str
    file: str = ""
    line: int = 0
    """0: not known."""


class ThreadStack(Struct, frozen=True):
    """The stack of one thread."""

    is_main: bool
    frames: tuple[Frame, ...]
    """The innermost function first."""


class Collective(Struct, frozen=True):
    """A collective operation of one rank."""

    number: int
    """Within its process group; the first is 1."""
    operation: str = ""
    """Such as "gloo:all_reduce"."""
    sizes: str = ""
    dtypes: str = ""


class GroupProgress(Struct, frozen=True):
    """How far a rank has come in one process group."""

    name: str
    description: str = ""
    """What the script calls it."""
    members: tuple[RankRange, ...] = ()
    """Global ranks, ascending; a long list is cut."""
    entered: int = 0
    """Number of the last collective that the rank has entered; 0: none."""
    completed: int = 0
    """Number of the last one that it has completed; 0: none."""
    latest: tuple[Collective, ...] = ()
    """The last one first."""


class RankEvidence(Struct, frozen=True):
    """What one worker does, and how far it has come."""

    rank: int | None = None
    pid: int = 0
    state: ProcessState = ProcessState.UNSPECIFIED
    """State of its main thread."""
    waits_in: str = ""
    """Where the main thread waits in the kernel; empty: not known."""
    cpu_time_ms: int = 0
    threads: tuple[ThreadStack, ...] = ()
    groups: tuple[GroupProgress, ...] = ()
    stderr_tail: str = ""
    gaps: tuple[str, ...] = ()
    """What is missing and why, a line each."""
    awaits_peer: bool = False
    """It has begun a send or a receive that has not ended."""


class StackGroup(Struct, frozen=True):
    """Ranks whose main threads have equal stacks."""

    ranks: tuple[RankRange, ...]
    """Ascending; at most RANGES_MAX."""
    count: int
    frames: tuple[Frame, ...]
    state: ProcessState
    """UNSPECIFIED: several."""
    is_odd: bool
    """True when these ranks differ from most others."""


class FindingKind(Enum):
    """Why ranks are behind or apart."""

    NOT_ENTERED = "not entered"
    OTHER_COLLECTIVE = "other collective"
    OTHER_SIZES = "other sizes"
    STOPPED = "stopped"
    UNINTERRUPTIBLE = "uninterruptible"
    OTHER_STACK = "other stack"
    NO_ANSWER = "no answer"


class Finding(Struct, frozen=True):
    """Something that sets ranks apart from the others."""

    kind: FindingKind
    ranks: tuple[RankRange, ...]
    """Ascending; at most RANGES_MAX."""
    group: str
    """Process group that it is about; empty: none."""
    number: int
    """Number of the collective that it is about; 0: none."""
    text: str


class Evidence(Struct, frozen=True):
    """What all ranks of a round did at one time."""

    round: int
    reason: str
    """Why it was taken, such as "requested"."""
    took_ms: int
    world_size: int
    answered: int
    """Workers that evidence came from."""
    culprit: int | None
    """The rank that all others wait for; None: several, or none."""
    text: str
    """What the evidence says, as one line."""
    findings: tuple[Finding, ...]
    """The strongest first; at most FINDINGS_MAX."""
    groups: tuple[StackGroup, ...]
    """The largest first; at most GROUPS_MAX."""
