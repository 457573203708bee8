"""Keys, values and changes of them."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

KEYS_MAX = 65_536
"""Keys of a job."""
BYTES_MAX = 33_554_432
"""Bytes of all keys and values of a job."""
TOTAL_WEIGHT_MAX = 536_870_912
"""What the keys and barriers of all jobs of a process may weigh, with what is remembered."""
BARE_WEIGHT_MAX = TOTAL_WEIGHT_MAX // 8
"""What ranks and nodes that bring nothing to a barrier may weigh beyond that, so that one job with
large values stops no other job's barriers."""
ANSWER_BYTES_MAX = 1_048_576
"""Bytes of keys and values in one answer."""
VALUE_BYTES_MAX = 65_536
"""Bytes of one value; the contract's limit, which an append must keep, too."""
WRITES_MAX = 256
"""Changes of one request."""
WRITE_BYTES_MAX = 1_048_576
"""Bytes of the values of one request."""
NUMBER_MAX = 2**63 - 1
"""Highest sum, and with a minus the lowest: what other languages hold in 64 bits."""


class Place(NamedTuple):
    """A key in its scope. Ordered: keys of the run first, each scope by the bytes of the keys."""

    round: int
    """0: it belongs to the run, and survives rounds."""
    key: str


class Entry(Struct, frozen=True):
    """The value of a key."""

    value: bytes
    created: int
    """Revision at which the key was created."""
    modified: int
    """Revision of the latest change."""
    version: int
    """Changes since it was created, from 1."""


class Change(Struct, frozen=True):
    """One change of a key."""

    revision: int
    place: Place
    entry: Entry | None
    """The key from then on; None: it was deleted."""


class Condition(Struct, frozen=True):
    """What a key must be like. Exactly one field is set."""

    value: bytes | None = None
    modified: int | None = None
    """Its `modified`; 0: the key does not exist."""

    def holds(self, entry: Entry | None) -> bool:
        """Return whether a key, None if it does not exist, is like this."""
        if self.value is not None:
            return entry is not None and entry.value == self.value
        return self.modified == (0 if entry is None else entry.modified)


class Write(Struct, frozen=True):
    """A change that a worker wants."""

    key: str
    value: bytes | None = None
    """The new value; None: delete the key, unless there is an amount or a suffix."""
    amount: int | None = None
    """Add this to the number that the key holds."""
    suffix: bytes | None = None
    """Append this to the value of the key."""
    expected: Condition | None = None
    """Change the key only if it is like this."""


class Written(Struct, frozen=True):
    """What became of one write."""

    revision: int = 0
    """Of the change; 0: nothing was changed."""
    sum: int = 0
    """After an addition."""
    entry: Entry | None = None
    """After a comparison: the key as it is then, if it exists."""


class Answer(Struct, frozen=True):
    """What became of a request."""

    revision: int
    """After its last change."""
    results: tuple[Written, ...]
    """One for each write, in order."""
    digest: bytes = b""
    """Of the writes: another request with the same id has another one."""
