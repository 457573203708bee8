"""What the client takes and returns: keys, conditions and operations of a transaction."""

from __future__ import annotations

import enum

from msgspec import Struct


class KeyValue(Struct, frozen=True):
    """A key as etcd has it."""

    key: bytes
    value: bytes
    created: int
    """Revision at which the key was created, since it was last deleted."""
    modified: int
    """Revision at which the key was changed last."""
    lease: int
    """Lease that the key ends with; 0: none."""


class Ranged(Struct, frozen=True):
    """An answer to a read."""

    found: tuple[KeyValue, ...]
    """The keys, sorted."""
    has_more: bool
    """Whether a limit left keys out."""
    revision: int
    """Revision of the store when it was read."""
    term: int
    """Term of the leader that confirmed the read."""


class Target(enum.Enum):
    """What a condition looks at."""

    CREATED = "create_revision"
    MODIFIED = "mod_revision"
    LEASE = "lease"
    VALUE = "value"


class Condition(Struct, frozen=True):
    """One key must be as expected. A key that does not exist has the number 0, and no value."""

    key: bytes
    target: Target
    number: int = 0
    value: bytes = b""
    """Only for VALUE, which has no number. A key that does not exist never has it."""


class Put(Struct, frozen=True):
    """Set a key."""

    key: bytes
    value: bytes
    lease: int = 0
    """Lease that the key ends with; 0: none."""


class Delete(Struct, frozen=True):
    """Remove a key, or all from `key` up to `end`."""

    key: bytes
    end: bytes = b""


class Get(Struct, frozen=True):
    """Read a key, or all from `key` up to `end`."""

    key: bytes
    end: bytes = b""


Operation = Put | Delete | Get


class Outcome(Struct, frozen=True):
    """How a transaction ended."""

    is_done: bool
    """Whether all conditions held."""
    revision: int
    """Revision of the store after it."""
    found: tuple[tuple[KeyValue, ...], ...]
    """What each `Get` of the branch that ran has read, in order."""


class Granted(Struct, frozen=True):
    """A lease that was granted or kept alive."""

    lease: int
    ttl_s: int
    term: int
    """Term of the member that answered, when it took the request."""


class Change(Struct, frozen=True):
    """A key that was set or deleted."""

    pair: KeyValue
    """A deleted one has no value, and its revision of deletion as `modified`."""
    is_deleted: bool


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all keys that begin with `prefix`, which is not empty.

    The prefixes here end with `/`, so the last byte can always be raised.
    """
    return prefix[:-1] + bytes((prefix[-1] + 1,))
