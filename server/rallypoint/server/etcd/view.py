"""What etcd shows about members and owners: read once, then followed change by change.

A change of this process may arrive by its own transaction before the watch brings it. So each key
has the revision of its last change, and an older one never replaces a newer one.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import Struct

from rallypoint.server.etcd.claims import Claim, Owner, owner_key
from rallypoint.server.etcd.values import Change, KeyValue


class Member(Struct, frozen=True):
    """A coordinator that is alive. The value of its key, as JSON."""

    address: str
    """`host:port` at which agents and other coordinators reach it."""
    is_leaving: bool = False
    """It releases its shards and claims none."""
    refused: tuple[int, ...] = ()
    """Shards that it could not serve: they are for others, if there are others."""


class Owned(Struct, frozen=True):
    """A shard that has an owner."""

    member: str
    """Id of the owner."""
    claim: Claim


class View:
    """Members and owners, as far as they are known."""

    def __init__(self, prefix: str) -> None:
        """Know nothing yet; `prefix` is that of all keys."""
        self.begin = f"{prefix}/live/".encode()
        self._prefix = prefix
        self._members = self.begin + b"members/"
        self._owners = self.begin + b"owners/"
        self._changed: dict[bytes, int] = {}
        """Revision of the last change of every key that is known, deleted ones included."""
        self.revision = 0
        """All changes up to this revision of the store are known."""
        self.members: dict[str, Member] = {}
        self.owners: dict[int, Owned] = {}
        self.changed = asyncio.Event()
        """Set by the next change, and replaced."""

    def wake(self) -> None:
        """Let those know who wait for a change."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def restart(self) -> None:
        """Let the next `reset` replace everything: with a backup, revisions of etcd go back."""
        self._changed = dict.fromkeys(self._changed, 0)
        self.revision = 0

    def reset(self, pairs: tuple[KeyValue, ...], revision: int) -> None:
        """Replace what is known by what was read at `revision`; keep what is newer."""
        present = {pair.key for pair in pairs}
        for key, changed in list(self._changed.items()):
            if changed <= revision and key not in present:
                self._apply(key, None)
                del self._changed[key]
                self.wake()
        for pair in pairs:
            self.note(Change(pair, is_deleted=False))
        self.revision = max(self.revision, revision)

    def follow(self, changes: tuple[Change, ...]) -> None:
        """Apply what a watch has seen."""
        for change in changes:
            self.note(change)
            self.revision = max(self.revision, change.pair.modified)

    def note(self, change: Change) -> None:
        """Apply one change, unless a newer one of its key is known."""
        pair = change.pair
        if pair.modified > self._changed.get(pair.key, 0):
            self._changed[pair.key] = pair.modified
            self._apply(pair.key, None if change.is_deleted else pair)
            self.wake()

    def note_released(self, claim: Claim, revision: int) -> None:
        """Apply the end of a claim, at `revision`."""
        owned = self.owners.get(claim.shard)
        if owned is None or owned.claim == claim:
            self.note(Change(KeyValue(claim.key, b"", 0, revision, 0), is_deleted=True))

    def note_claimed(self, claim: Claim, member: str) -> None:
        """Apply a claim of this process."""
        value = msgspec.json.encode(Owner(member))
        pair = KeyValue(claim.key, value, claim.revision, claim.revision, 0)
        self.note(Change(pair, is_deleted=False))

    def owners_by_id(self) -> dict[int, str]:
        """Return the id of the owner of every shard that has one."""
        return {shard: owned.member for shard, owned in self.owners.items()}

    def taking_part(self) -> set[str]:
        """Return the ids of the members that may claim shards."""
        return {name for name, member in self.members.items() if not member.is_leaving}

    def refused(self) -> dict[str, tuple[int, ...]]:
        """Return which shards members could not serve, by id."""
        return {name: member.refused for name, member in self.members.items() if member.refused}

    def _apply(self, key: bytes, pair: KeyValue | None) -> None:
        name = key.rpartition(b"/")[2].decode("utf-8", "replace")
        try:
            if key.startswith(self._members):
                if pair is None:
                    self.members.pop(name, None)
                else:
                    self.members[name] = msgspec.json.decode(pair.value, type=Member)
            elif key.startswith(self._owners) and name.isdigit():
                shard = int(name)
                if pair is None:
                    self.owners.pop(shard, None)
                else:
                    owner = msgspec.json.decode(pair.value, type=Owner)
                    claim = Claim(shard, owner_key(self._prefix, shard), pair.created)
                    self.owners[shard] = Owned(owner.member, claim)
        except msgspec.MsgspecError:
            # Something else than a coordinator wrote it. A shard with such an owner has one all the
            # same: nothing claims it before the key is gone.
            if key.startswith(self._owners):
                claim = Claim(int(name), key, 0 if pair is None else pair.created)
                self.owners[int(name)] = Owned("", claim)
