"""A small model of etcd: keys with revisions, transactions, leases and watches. No network here.

Everything happens at once and in one order, as in the log of a cluster. A lease may end late: the
keys that it holds are there until the leader has looked, and a new leader counts leases afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from rallypoint.server.etcd.errors import EtcdCompacted, EtcdError, EtcdLeaseGone, EtcdTooLarge
from rallypoint.server.etcd.values import (
    Change,
    Condition,
    Delete,
    Get,
    Granted,
    KeyValue,
    Operation,
    Outcome,
    Put,
    Ranged,
    Target,
)

Seen = Callable[[tuple[Change, ...]], None]
OPERATIONS_MAX = 128
REQUEST_BYTES_MAX = 3 << 19
"""Defaults of etcd: of the conditions and of each branch of a transaction, and of a request."""


@dataclass(slots=True)
class Lease:
    """A lease, by the clock of the leader."""

    ttl_ms: int
    ends_ms: int
    """Nothing renews it from then on."""
    keys: set[bytes] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Watcher:
    """Learns every change of the keys that begin with a prefix."""

    prefix: bytes
    seen: Seen


class Etcd:
    """A cluster."""

    def __init__(self) -> None:
        self.revision = 1
        self.term = 2
        self.keys: dict[bytes, KeyValue] = {}
        self.leases: dict[int, Lease] = {}
        self.watchers: list[Watcher] = []
        self._history: list[Change] = []
        """Of watched keys, oldest first."""
        self._compacted = 0
        """Changes before this revision are gone."""
        self._deleted: dict[bytes, int] = {}
        """When each key was deleted last."""
        self._watched = b""

    def remember(self, prefix: bytes) -> None:
        """Keep the changes of keys with this prefix for watchers that begin later."""
        self._watched = prefix

    # --- reads ---

    def range(
        self, key: bytes, end: bytes, revision: int, limit: int, *, keys_only: bool = False
    ) -> Ranged:
        """Return keys as they are now.

        A revision that is not the newest one counts as compacted away if anything in the range has
        changed since.

        Raises:
            EtcdCompacted: see above.
            EtcdError: the revision is still to come.
        """
        if revision > self.revision:
            raise EtcdError("required revision is a future revision")
        found = self._find(key, end)
        if revision and (revision < self._compacted or self._has_changed(key, end, revision)):
            raise EtcdCompacted("etcd has compacted this revision away")
        has_more = bool(limit) and len(found) > limit
        if keys_only:
            found = [replace(pair, value=b"") for pair in found]
        shown = found[:limit] if limit else found
        return Ranged(tuple(shown), has_more, self.revision, self.term)

    def _has_changed(self, key: bytes, end: bytes, revision: int) -> bool:
        """Return whether any key of a range was set or deleted after a revision."""
        if revision == self.revision:
            return False
        gone = Delete(key, end)
        return any(pair.modified > revision for pair in self._find(key, end)) or any(
            at > revision and _covers(gone, one) for one, at in self._deleted.items()
        )

    def _find(self, key: bytes, end: bytes) -> list[KeyValue]:
        if not end:
            return [self.keys[key]] if key in self.keys else []
        return [self.keys[one] for one in sorted(self.keys) if key <= one < end]

    # --- transactions ---

    def holds(self, condition: Condition) -> bool:
        """Return whether a condition holds now."""
        pair = self.keys.get(condition.key)
        if pair is None:
            return condition.number == 0 and condition.target is not Target.VALUE
        match condition.target:
            case Target.CREATED:
                return pair.created == condition.number
            case Target.MODIFIED:
                return pair.modified == condition.number
            case Target.LEASE:
                return pair.lease == condition.number
            case Target.VALUE:
                return pair.value == condition.value

    def transact(
        self,
        conditions: Sequence[Condition],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> Outcome:
        """Do one branch.

        Raises:
            EtcdTooLarge: it has too many conditions or operations, or too many bytes.
            EtcdError: a branch changes a key twice.
            EtcdLeaseGone: a key would hold on to a lease that has ended.
        """
        _check_size(conditions, then, otherwise)
        _check_keys(then)
        _check_keys(otherwise)
        is_done = all(map(self.holds, conditions))
        branch = then if is_done else otherwise
        for one in branch:
            if isinstance(one, Put) and one.lease and one.lease not in self.leases:
                raise EtcdLeaseGone("the lease has ended")
        revision = self.revision + 1
        changes: list[Change] = []
        found: list[tuple[KeyValue, ...]] = []
        for one in branch:
            match one:
                case Get(key=key, end=end):
                    found.append(tuple(self._find(key, end)))
                case Put():
                    changes.append(self._put(one, revision))
                case Delete(key=key, end=end):
                    for pair in self._find(key, end):
                        changes.append(self._delete(pair.key, revision))
        self._commit(changes)
        return Outcome(is_done, self.revision, tuple(found))

    def _put(self, put: Put, revision: int) -> Change:
        before = self.keys.get(put.key)
        if before is not None and before.lease in self.leases:
            self.leases[before.lease].keys.discard(put.key)
        if put.lease:
            self.leases[put.lease].keys.add(put.key)
        created = revision if before is None else before.created
        pair = KeyValue(put.key, put.value, created, revision, put.lease)
        self.keys[put.key] = pair
        return Change(pair, is_deleted=False)

    def _delete(self, key: bytes, revision: int) -> Change:
        before = self.keys.pop(key)
        self._deleted[key] = revision
        if before.lease in self.leases:
            self.leases[before.lease].keys.discard(key)
        return Change(KeyValue(key, b"", 0, revision, 0), is_deleted=True)

    def _commit(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        self.revision += 1
        watched = [one for one in changes if one.pair.key.startswith(self._watched)]
        self._history += watched
        for watcher in list(self.watchers):
            seen = tuple(one for one in watched if one.pair.key.startswith(watcher.prefix))
            if seen:
                watcher.seen(seen)

    # --- leases ---

    def grant(self, lease: int, ttl_ms: int, now_ms: int) -> Granted:
        """Begin a lease."""
        self.leases[lease] = Lease(ttl_ms, now_ms + ttl_ms)
        return Granted(lease, ttl_ms // 1000, self.term)

    def renew(self, lease: int, now_ms: int) -> Granted:
        """Renew a lease; one that has ended is not renewed, even if its keys are there."""
        held = self.leases.get(lease)
        if held is None or held.ends_ms <= now_ms:
            return Granted(lease, 0, self.term)
        held.ends_ms = now_ms + held.ttl_ms
        return Granted(lease, held.ttl_ms // 1000, self.term)

    def revoke(self, lease: int) -> None:
        """End a lease, and its keys.

        Raises:
            EtcdLeaseGone: it has ended before.
        """
        held = self.leases.pop(lease, None)
        if held is None:
            raise EtcdLeaseGone("the lease has ended")
        revision = self.revision + 1
        self._commit([self._delete(key, revision) for key in sorted(held.keys)])

    def elect(self, now_ms: int) -> None:
        """Begin a term: the new leader counts every lease afresh."""
        self.term += 1
        for lease in self.leases.values():
            lease.ends_ms = now_ms + lease.ttl_ms

    # --- watches ---

    def watch(self, prefix: bytes, from_revision: int, seen: Seen) -> Watcher:
        """Learn every change from a revision on.

        Raises:
            EtcdCompacted: some of them are gone.
        """
        if from_revision < self._compacted:
            raise EtcdCompacted("etcd has compacted the watched revision away")
        watcher = Watcher(prefix, seen)
        past = [
            one
            for one in self._history
            if one.pair.modified >= from_revision and one.pair.key.startswith(prefix)
        ]
        if past:
            seen(tuple(past))
        self.watchers.append(watcher)
        return watcher

    def compact(self) -> None:
        """Forget all changes but the keys set by the newest one.

        A watch may begin at that revision, and etcd before 3.5.19 does not tell it what was deleted
        there.
        """
        self._compacted = self.revision
        self._history = [
            one
            for one in self._history
            if one.pair.modified == self.revision and not one.is_deleted
        ]


def _covers(delete: Delete, key: bytes) -> bool:
    return delete.key <= key < delete.end if delete.end else delete.key == key


def _check_size(
    conditions: Sequence[Condition], then: Sequence[Operation], otherwise: Sequence[Operation]
) -> None:
    """Refuse a transaction that is too long, as etcd does before it looks at any key."""
    if max(len(conditions), len(then), len(otherwise)) > OPERATIONS_MAX:
        raise EtcdTooLarge("too many operations")
    puts = [one for one in (*then, *otherwise) if isinstance(one, Put)]
    if sum(len(one.key) + len(one.value) for one in puts) > REQUEST_BYTES_MAX:
        raise EtcdTooLarge("request is too large")


def _check_keys(branch: Sequence[Operation]) -> None:
    """Refuse a branch that sets a key twice, or sets and deletes it."""
    keys = [one.key for one in branch if isinstance(one, Put)]
    deletes = [one for one in branch if isinstance(one, Delete)]
    if len(set(keys)) < len(keys) or any(_covers(one, key) for one in deletes for key in keys):
        raise EtcdError("duplicate key given in txn request")
