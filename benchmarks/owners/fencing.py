"""Reads everything that is written to a store, in the order of etcd's revisions.

It knows the owner of each shard at each revision. A write to a journal that comes without one, or
from a life of another owner, is what must never happen.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
from aetcd import rpc

PAUSE_S = 0.1
LOADED = 2
"""Writes with which an owner begins: one before it reads the journal, and one after it."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A shard that has an owner."""

    member: str
    revision: int
    """At which it was claimed."""


@dataclass
class _Seen:
    """What the keys say, up to a revision."""

    members: dict[str, str] = field(default_factory=dict)
    """Addresses, by id; those that have gone too."""
    owners: dict[int, Owned] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    """The claim of each life of a shard's owner."""
    written: dict[int, int] = field(default_factory=dict)
    """How often each shard was written to since it was claimed."""


class Fencing(threading.Thread):
    """A watch of all keys. Threads may read its fields."""

    def __init__(self, endpoints: list[str], prefix: str) -> None:
        super().__init__(name="fencing")
        self._endpoints = endpoints
        self._prefix = prefix.encode()
        self._seen = _Seen()
        self._lock = threading.Lock()
        self._call: grpc.Call | None = None
        self._stopping = threading.Event()
        self._revision = 0
        self.writes = 0
        """Writes to journals."""
        self.claims = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        at = 0
        while not self._stopping.is_set():
            try:
                self._watch(self._endpoints[at % len(self._endpoints)])
            except grpc.RpcError:
                at += 1  # another member
                self._stopping.wait(PAUSE_S)
            except Exception as error:  # noqa: BLE001  # the root of the thread
                self.wrong.append(f"the keys in etcd cannot be followed: {error!r}")
                return

    def close(self) -> None:
        """End it."""
        self._stopping.set()
        with self._lock:
            call = self._call
        if call is not None:
            call.cancel()
        self.join()

    def take_wrong(self) -> list[str]:
        """Return what was found wrong since the last call."""
        with self._lock:
            wrong, self.wrong = self.wrong, []
            return wrong

    def owners(self) -> dict[int, Owned]:
        """Return the owners as they are now."""
        with self._lock:
            return dict(self._seen.owners)

    def address(self, shard: int) -> str:
        """Return where the owner of a shard is; empty: there is none."""
        with self._lock:
            owned = self._seen.owners.get(shard)
            return "" if owned is None else self._seen.members.get(owned.member, "")

    def has_loaded(self, shard: int) -> bool:
        """Return whether the last owner of a shard has read its journal."""
        with self._lock:
            return self._seen.written.get(shard, 0) >= LOADED

    def _watch(self, endpoint: str) -> None:
        requests: queue.SimpleQueue[rpc.WatchRequest] = queue.SimpleQueue()
        end = self._prefix[:-1] + bytes([self._prefix[-1] + 1])
        create = rpc.WatchCreateRequest(
            key=self._prefix, range_end=end, start_revision=self._revision + 1
        )
        requests.put(rpc.WatchRequest(create_request=create))
        with grpc.insecure_channel(endpoint) as channel:
            # A member without a leader ends the watch.
            call = rpc.WatchStub(channel).Watch(_read(requests), metadata=[("hasleader", "true")])
            with self._lock:
                self._call = call
            if self._stopping.is_set():
                call.cancel()
            for answer in call:
                if answer.canceled:
                    raise ValueError(f"etcd has ended the watch: {answer.cancel_reason}")
                with self._lock:
                    for event in answer.events:
                        self._take(event)
                        self._revision = max(self._revision, event.kv.mod_revision)

    def _take(self, event: rpc.Event) -> None:
        key = event.kv.key.removeprefix(self._prefix).decode()
        _, kind, *names = key.split("/")
        is_deleted = event.type == rpc.Event.DELETE
        if kind == "live" and names[0] == "members" and not is_deleted:
            self._seen.members[names[1]] = json.loads(event.kv.value)["address"]
        elif kind == "live" and names[0] == "owners" and is_deleted:
            self._seen.owners.pop(int(names[1]), None)
        elif kind == "live" and names[0] == "owners":
            member = json.loads(event.kv.value)["member"]
            self._seen.owners[int(names[1])] = Owned(member, event.kv.create_revision)
            self._seen.written[int(names[1])] = 0
            self.claims += 1
        elif kind == "shards" and names[1] == "head" and not is_deleted:
            self._take_write(int(names[0]), json.loads(event.kv.value)["life"], event)

    def _take_write(self, shard: int, life: str, event: rpc.Event) -> None:
        """Note a write to a journal: it must be one of the owner."""
        self.writes += 1
        self._seen.written[shard] = self._seen.written.get(shard, 0) + 1
        owned = self._seen.owners.get(shard)
        revision = event.kv.mod_revision
        if owned is None:
            self.wrong.append(f"shard {shard}: written at revision {revision} without an owner")
        elif self._seen.lives.setdefault(life, owned.revision) != owned.revision:
            self.wrong.append(f"shard {shard}: a deposed owner has written at revision {revision}")


def _read(requests: queue.SimpleQueue[rpc.WatchRequest]) -> Iterator[rpc.WatchRequest]:
    while True:  # the call ends the thread that waits here
        yield requests.get()
