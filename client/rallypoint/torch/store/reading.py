"""What the keys of one store hold at the coordinator.

Keys of torch are under `<prefix>k/`, queues under `<prefix>q/`, the parts of long values under
`<prefix>p/`, and under `<prefix>n/` the keys whose names are digests. Calls wait at the
coordinator: nothing here polls.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from typing import TypeVar

from rallypoint.client.errors import KeysMissing, LimitReached, RallypointError
from rallypoint.torch.store.connection import Connection
from rallypoint.torch.store.names import (
    NAME_BYTES_MAX,
    PREFIX_BYTES_MAX,
    decode_key,
    encode_key,
    is_digest,
)
from rallypoint.torch.store.packing import Parted, unpack
from rallypoint.v1 import key_value_service_pb2 as keys_pb2

KEYS_PER_READ = 1_024
"""Most keys of one GetKeys."""
PARTS_PER_CALL = 15
"""Parts that fit into one call or answer of 1 MiB, with room for their keys."""
WAIT_S_MAX = 80_000.0
"""Longest wait of one call; the contract allows a day."""
CALL_S_MIN = 30.0
"""A call that waits for no other rank may take so long at least: longer than a restart of the
coordinator."""
LAST_CALL_S_MIN = 1.0
"""A call that begins just before the deadline of its operation may take so long."""
PAUSE_S_MIN = 0.005
PAUSE_S_MAX = 1.0
"""Bounds of the pauses between two attempts: random below a bound that doubles from the first to
the second. The first is about the time of a call."""

Item = TypeVar("Item")


class PartsLost(RallypointError):
    """A key refers to parts that do not exist: something else has deleted them."""

    status = "DATA_LOSS"


class KeyContended(RallypointError):
    """Others have changed a key during every attempt, until the deadline."""

    status = "ABORTED"


class Deadline:
    """When a wait ends."""

    def __init__(self, limit_s: float) -> None:
        """Begin now."""
        self.limit_s = limit_s
        self._ends_s = time.monotonic() + limit_s

    def left_s(self) -> float:
        """Return the time that is left; 0: none."""
        return max(0.0, self._ends_s - time.monotonic())


class Tries:
    """The attempts of one operation: one deadline, and a random pause before each but the first."""

    def __init__(self, connection: Connection, deadline: Deadline) -> None:
        """Begin before the first attempt."""
        self._connection = connection
        self._deadline = deadline
        self._pauses = 0

    @property
    def limit_s(self) -> float:
        """How long the next call may take."""
        return max(LAST_CALL_S_MIN, self._deadline.left_s())

    def pause(self) -> bool:
        """Wait before another attempt; return whether there is time for one.

        Raises:
            ClientClosed: meanwhile.
        """
        bound_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** min(self._pauses, 16))
        pause_s = random.uniform(0.0, bound_s)
        if pause_s >= self._deadline.left_s():
            return False
        self._pauses += 1
        self._connection.pause(pause_s)
        return True

    def pause_for(self, name: str) -> None:
        """Wait before another attempt to change a key that others have changed.

        Raises:
            KeyContended: there is no time for one.
            ClientClosed: meanwhile.
        """
        if not self.pause():
            raise KeyContended(
                f"others changed the key {name!r} during every attempt "
                f"for {self._deadline.limit_s:g} s"
            )


class Reading:
    """The keys of one store. Threads may share it."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        """Look at the keys of a job whose names begin with a prefix.

        Raises:
            ValueError: when the prefix is too long, or the contract does not accept it.
        """
        if len(prefix.encode()) > PREFIX_BYTES_MAX:
            raise ValueError(f"the prefix is too long: at most {PREFIX_BYTES_MAX} bytes")
        if not prefix.isprintable() or " " in prefix:
            raise ValueError(f"the prefix {prefix!r} must be printable, without spaces")
        self._connection = connection
        self._job_id = connection.job_id
        self._scope = connection.scope
        self._prefix = prefix
        self._room = NAME_BYTES_MAX - len(prefix.encode()) - len("k/")
        self._named: set[str] = set()
        """Digests whose keys are known at the coordinator."""

    def name_of(self, key: str) -> str:
        """Return the name of a key."""
        return f"{self._prefix}k/{encode_key(key, self._room)}"

    def queue_of(self, key: str) -> str:
        """Return the name of a queue."""
        return f"{self._prefix}q/{encode_key(key, self._room)}"

    def count(self) -> int:
        """Return how many keys there are."""
        pages = self._connection.client.list_keys(
            self._job_id, f"{self._prefix}k/", keys_only=True, scope=self._scope, page_size=1
        )
        next(iter(pages), None)
        count: int = pages.first.key_count
        return count

    def keys(self) -> list[str]:
        """Return the keys, by the bytes of their names."""
        start = f"{self._prefix}k/"
        kvs = self._connection.client.list_keys(
            self._job_id, start, keys_only=True, scope=self._scope
        )
        names = [kv.key.removeprefix(start) for kv in kvs]
        digests = {name: f"{self._prefix}n/{name}" for name in names if is_digest(name)}
        held = self._fetch(digests.values(), Deadline(0.0))
        keys = {}
        for name, place in digests.items():
            if place in held:
                key = self._load(held[place])
                keys[name] = name if key is None else key.decode("utf-8", "surrogatepass")
        return [keys.get(name, name) if is_digest(name) else decode_key(name) for name in names]

    def wait(self, names: Sequence[str], wait_s: float) -> None:
        """Wait until all of these exist.

        Raises:
            KeysMissing: when they did not in time.
            RallypointError: when it fails otherwise.
        """
        self._fetch_all(names, Deadline(wait_s))

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all of these exist, as a key or as a queue."""
        places = [(self.name_of(key), self.queue_of(key)) for key in keys]
        found = self._fetch((name for place in places for name in place), Deadline(0.0))
        return all(name in found or queue in found for name, queue in places)

    def get(self, names: Sequence[str], wait_s: float) -> list[bytes]:
        """Wait until all of these exist; return their values, in the same order.

        Raises:
            KeysMissing: when they did not in time.
            KeyContended: when one was changed whenever it was read.
            RallypointError: when it fails otherwise.
        """
        deadline, tries = Deadline(wait_s), self._tries(wait_s)
        values: dict[str, bytes] = {}
        missing = list(dict.fromkeys(names))
        while missing:
            for name, kv in self._fetch_all(missing, deadline).items():
                value = self._load(kv)
                if value is not None:
                    values[name] = value
            missing = [name for name in missing if name not in values]
            if missing:  # they were changed while their parts were read
                tries.pause_for(missing[0])
        return [values[name] for name in names]

    def _tries(self, limit_s: float) -> Tries:
        return Tries(self._connection, Deadline(max(CALL_S_MIN, limit_s)))

    def _fetch_all(self, names: Sequence[str], deadline: Deadline) -> dict[str, keys_pb2.KeyValue]:
        found = self._fetch(names, deadline)
        missing = tuple(name for name in dict.fromkeys(names) if name not in found)
        if missing:
            raise KeysMissing("keys do not exist", keys=missing, missing_count=len(missing))
        return found

    def _fetch(self, names: Iterable[str], deadline: Deadline) -> dict[str, keys_pb2.KeyValue]:
        """Return what the keys hold; wait for them until the deadline."""
        found: dict[str, keys_pb2.KeyValue] = {}
        chunks = batches(list(dict.fromkeys(names)), KEYS_PER_READ)
        while chunks:
            chunk = chunks.pop()
            wait_s = min(deadline.left_s(), WAIT_S_MAX)
            timeout_s = max(CALL_S_MIN, deadline.limit_s)
            try:
                answer = self._connection.client.get_keys(
                    self._job_id, chunk, wait_s=wait_s, scope=self._scope, timeout_s=timeout_s
                )
            except KeysMissing:
                chunks.append(chunk)  # once more without a wait: which of them do exist?
            except LimitReached:
                if len(chunk) == 1:
                    raise
                middle = len(chunk) // 2  # the values are too long for one answer
                chunks += [chunk[:middle], chunk[middle:]]
            else:
                found |= {kv.key: kv for kv in answer.kvs}
        return found

    def _load(self, kv: keys_pb2.KeyValue) -> bytes | None:
        """Return the value of a key; None: it has changed, so its parts are gone."""
        held = unpack(kv.value)
        if isinstance(held, bytes):
            return held
        parts: list[bytes] = []
        for names in batches(self._part_names(held), PARTS_PER_CALL):
            found = self._fetch(names, Deadline(0.0))
            if len(found) < len(names):
                now = self._fetch([kv.key], Deadline(0.0)).get(kv.key)
                if now is not None and now.mod_revision == kv.mod_revision:
                    raise PartsLost(f"parts of the value of {kv.key!r} do not exist any more")
                return None
            parts += (found[name].value for name in names)
        return b"".join((*parts, held.tail))

    def _part_names(self, parted: Parted) -> list[str]:
        return [f"{self._prefix}p/{name}" for name in parted.names()]


def batches(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Return the items in pieces of a size."""
    return [items[at : at + size] for at in range(0, len(items), size)]
