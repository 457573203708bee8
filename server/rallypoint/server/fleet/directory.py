"""What a coordinator knows about the owners of shards, as far as calls need it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol


class Directory(Protocol):
    """Knows which coordinator owns which shard. It may be out of date: the owner knows better."""

    @property
    def coordinator_id(self) -> str:
        """Return the identity of the store, which all its coordinators share."""

    @property
    def shard_count(self) -> int:
        """Return the number of shards; it never changes. 0: the store was not reached yet."""

    @property
    def changed(self) -> asyncio.Event:
        """Return an event that the next change sets: of an owner, or of `is_sure`.

        Another event replaces it then.
        """

    def is_sure(self) -> bool:
        """Return whether the store can be reached."""

    def trouble(self, shard: int | None = None) -> str:
        """Return why a shard is not served, in one line; None: why none can be.

        Empty: no reason is known. A shard that moves has none for a moment.
        """

    def owner_of(self, shard: int) -> str | None:
        """Return the `host:port` of the other coordinator that owns a shard.

        None: it has no owner, or this one is the owner, or that is not known.
        """


class LocalShard(Protocol):
    """A shard that this process serves."""

    @property
    def services(self) -> Mapping[str, Any]:
        """Return the servicers, by the full names of their services."""


class Local(Protocol):
    """The shards that this process serves."""

    def find(self, shard: int) -> LocalShard | None:
        """Return a shard; None when this process does not serve it, or may own it no more."""
