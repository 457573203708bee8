"""The keys of one store at the coordinator: torch's operations as calls of KeyValueService.

Keys of torch are under `<prefix>k/`, queues under `<prefix>q/`, the parts of long values under
`<prefix>p/`, and under `<prefix>n/` the keys whose names are digests. Calls wait at the
coordinator: nothing here polls.

* What depends on the value of a key compares its revision and tries again if another caller was
  faster. So every attempt that fails is the progress of another. It pauses before, and gives up at
  its deadline.
* An append does not: the coordinator makes it, so it costs one call, however many others append.
* A long value is complete before a key refers to it, and its parts go after no key does any more.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from rallypoint.client.errors import (
    Forgotten,
    KeysMissing,
    LimitReached,
    RallypointError,
    Refused,
)
from rallypoint.torch.store.connection import Connection, Deadline, Tries
from rallypoint.torch.store.encoding import (
    NAME_BYTES_MAX,
    NUMBER_MAX,
    NUMBER_MIN,
    PART_BYTES,
    PREFIX_BYTES_MAX,
    VALUE_BYTES_MAX,
    Parted,
    can_be_appended,
    decode_key,
    encode_key,
    is_digest,
    pack_short,
    read_number,
    split,
    unpack,
)
from rallypoint.v1 import error_details_pb2 as details_pb2
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
AMOUNT_MAX = 2**53 - 1
"""Most that the contract lets a call add."""
WRITES_PER_CALL = 256
"""Most changes of one WriteKeys."""
NAMED_MAX = 4_096
"""Digests of keys that a store remembers to have written; the same is written again beyond that."""
ABSENT = keys_pb2.KeyCondition(mod_revision=0)

Item = TypeVar("Item")


class PartsLost(RallypointError):
    """A key refers to parts that do not exist: something else has deleted them."""

    status = "DATA_LOSS"


class ValueTooLong(RallypointError):
    """A value is longer than a store takes."""

    status = "RESOURCE_EXHAUSTED"


class StoreKeys:
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

    def note_name(self, key: str, limit_s: float) -> None:
        """Keep a key whose name is a digest, so that it can be listed."""
        name = encode_key(key, self._room)
        if is_digest(name) and name not in self._named:
            if len(self._named) >= NAMED_MAX:
                self._named.clear()
            text = key.encode("utf-8", "surrogatepass")
            self.set([(f"{self._prefix}n/{name}", text)], limit_s)
            self._named.add(name)

    def peek(self, name: str, limit_s: float) -> bytes | None:
        """Return the value of a key; None: it does not exist."""
        return self.change(name, lambda _: None, limit_s)[0]

    def set(self, pairs: Sequence[tuple[str, bytes]], limit_s: float) -> None:
        """Set keys, in order."""
        tries = self._tries(limit_s)
        while True:
            try:
                self._set(pairs, tries)
                return
            except Forgotten:
                # A new coordinator has no keys: whether this was done before makes no difference.
                if not tries.pause():
                    raise

    def _set(self, pairs: Sequence[tuple[str, bytes]], tries: Tries) -> None:
        for _, value in pairs:
            _check_length(value)
        held = [(name, self._hold(value, tries.limit_s)) for name, value in pairs]
        # A key that exists may have parts to delete. Most do not exist: try that first.
        for batch in _by_bytes(held):
            results = self._write([_set_if(*pair, ABSENT) for pair in batch], tries.limit_s)
            for (name, value), result in zip(batch, results, strict=True):
                if not result.was_changed:
                    self._replace(name, value, result.kv, tries)

    def add(self, name: str, amount: int, limit_s: float) -> int:
        """Add to the number that a key holds, 0 if it does not exist; return the sum.

        The coordinator reads fewer texts as numbers than torch, and adds less at once. The others
        are read here.

        Raises:
            ValueError: when it holds no number, or the sum has more than 64 bits.
            TypeError: when the amount has more than 64 bits.
            RallypointError: when it fails otherwise.
        """
        if abs(amount) <= AMOUNT_MAX:
            write = keys_pb2.KeyWrite(key=name, add=keys_pb2.KeyWrite.Add(amount=amount))
            with suppress(Refused):
                return self._write([write], max(CALL_S_MIN, limit_s))[0].sum
        if not NUMBER_MIN <= amount <= NUMBER_MAX:
            raise TypeError(f"{amount} does not fit into 64 bits")
        total = 0

        def decide(held: bytes | None) -> bytes:
            nonlocal total
            total = amount + read_number(held)
            if not NUMBER_MIN <= total <= NUMBER_MAX:
                raise ValueError(f"the sum {total} does not fit into 64 bits")
            return b"%d" % total

        self.change(name, decide, limit_s)
        return total

    def change(
        self, name: str, decide: Callable[[bytes | None], bytes | None], limit_s: float
    ) -> tuple[bytes | None, bool]:
        """Set a key to what is decided from its value; return the value before, and if it was set.

        Args:
            name: of the key.
            decide: from the value, None if the key does not exist, returns the new one; None: leave
                it as it is. It is asked again if the key was changed meanwhile.
            limit_s: how long it may take.

        Raises:
            KeyContended: when others were faster until then.
            RallypointError: when it fails otherwise.
        """
        tries = self._tries(limit_s)
        while True:
            done = self._change_once(name, decide, tries)
            if done is not None:
                return done
            tries.pause_for(name)

    def _change_once(
        self, name: str, decide: Callable[[bytes | None], bytes | None], tries: Tries
    ) -> tuple[bytes | None, bool] | None:
        """Do what `change` does; return None if another caller was faster."""
        kv = self._fetch([name], Deadline(0.0)).get(name)
        before = None if kv is None else self._load(kv)
        if kv is not None and before is None:
            return None
        after = decide(before)
        if after is None:
            return before, False
        _check_length(after)
        return (before, True) if self._swap(name, after, kv, tries.limit_s) else None

    def append(self, name: str, more: bytes, limit_s: float) -> None:
        """Append to the value of a key; one that does not exist counts as empty.

        It is one call of the coordinator, which needs no value before. Only when the key holds no
        more, what it holds moves to parts.

        Raises:
            KeyContended: when others were faster all the time.
            RallypointError: when it fails otherwise.
        """

        def decide(held: bytes | None) -> bytes:
            return (held or b"") + more

        if not can_be_appended(more):
            self.change(name, decide, limit_s)
            return
        tries = self._tries(limit_s)
        while not self._append_once(name, more, tries):
            tries.pause_for(name)  # of many callers that find no room, a few make some
            if self._append_once(name, more, tries) or self._change_once(name, decide, tries):
                return
            tries.pause_for(name)

    def _append_once(self, name: str, more: bytes, tries: Tries) -> bool:
        """Append to what a key holds; return whether it had room."""
        write = keys_pb2.KeyWrite(key=name, append=keys_pb2.KeyWrite.Append(value=more))
        try:
            self._write([write], tries.limit_s)
        except LimitReached as error:
            if error.kind != details_pb2.LIMIT_KIND_VALUE_BYTES:
                raise
            return False
        return True

    def delete(self, name: str, limit_s: float) -> bool:
        """Delete a key; return whether it existed.

        Raises:
            KeyContended: when others have changed it all the time.
            RallypointError: when it fails otherwise.
        """
        tries = self._tries(limit_s)
        while True:
            kv = self._fetch([name], Deadline(0.0)).get(name)
            if kv is None:
                return False
            if self._set_over(name, None, kv, tries.limit_s):
                return True
            tries.pause_for(name)

    def pop(self, name: str, wait_s: float, cut: Callable[[bytes], tuple[bytes, bytes]]) -> bytes:
        """Wait for a key, and take the beginning of its value; the key goes with the last bytes.

        Args:
            name: of the key.
            wait_s: how long to wait; 0: do not wait.
            cut: returns the beginning and the rest.

        Raises:
            KeysMissing: when there is no such key in time.
            KeyContended: when others were faster all the time.
            RallypointError: when it fails otherwise.
        """
        deadline, tries = Deadline(wait_s), self._tries(wait_s)
        while True:
            kv = self._fetch_all([name], deadline)[name]
            value = self._load(kv)
            if value is not None:
                first, rest = cut(value)
                if self._swap(name, rest or None, kv, tries.limit_s):
                    return first
            tries.pause_for(name)

    def _replace(self, name: str, held: bytes, kv: keys_pb2.KeyValue | None, tries: Tries) -> None:
        """Set a key that existed."""
        while kv is not None and isinstance(unpack(kv.value), Parted):
            if self._set_over(name, held, kv, tries.limit_s):
                return
            tries.pause_for(name)
            kv = self._fetch([name], Deadline(0.0)).get(name)
        put = keys_pb2.KeyWrite(key=name, put=keys_pb2.KeyWrite.Put(value=held))
        self._write([put], tries.limit_s)

    def _set_over(
        self, name: str, held: bytes | None, kv: keys_pb2.KeyValue | None, limit_s: float
    ) -> bool:
        """Set a key if it is as it was, None if it did not exist; return whether it was.

        Without something to hold it is deleted.
        """
        expected = ABSENT if kv is None else keys_pb2.KeyCondition(mod_revision=kv.mod_revision)
        deletion = keys_pb2.KeyWrite(key=name, delete=keys_pb2.KeyWrite.Delete(expected=expected))
        write = deletion if held is None else _set_if(name, held, expected)
        was_changed = self._write([write], limit_s)[0].was_changed
        if was_changed and kv is not None:
            self._drop_parts(kv.value, limit_s)
        return was_changed

    def _swap(
        self, name: str, value: bytes | None, kv: keys_pb2.KeyValue | None, limit_s: float
    ) -> bool:
        """Do what `_set_over` does for a value of any length."""
        held = None if value is None else self._hold(value, limit_s)
        was_set = self._set_over(name, held, kv, limit_s)
        if held is not None and not was_set:
            self._drop_parts(held, limit_s)
        return was_set

    def _hold(self, value: bytes, limit_s: float) -> bytes:
        """Return what a key holds for a value, after its parts are written."""
        held = pack_short(value)
        if held is not None:
            return held
        parted = Parted(secrets.token_bytes(16), len(value))
        writes = [
            keys_pb2.KeyWrite(key=name, put=keys_pb2.KeyWrite.Put(value=part))
            for name, part in zip(self._part_names(parted), split(value), strict=True)
        ]
        try:
            for batch in batches(writes, PARTS_PER_CALL):
                self._write(batch, limit_s)
        except LimitReached:
            self._drop_parts(parted.pack(), limit_s)  # there was no room for all of them
            raise
        return parted.pack()

    def _drop_parts(self, held: bytes, limit_s: float) -> None:
        parted = unpack(held)
        if isinstance(parted, Parted):
            delete = keys_pb2.KeyWrite.Delete()
            for names in batches(self._part_names(parted), WRITES_PER_CALL):
                self._write([keys_pb2.KeyWrite(key=one, delete=delete) for one in names], limit_s)

    def _write(
        self, writes: Sequence[keys_pb2.KeyWrite], limit_s: float
    ) -> Sequence[keys_pb2.KeyWritten]:
        """Make changes in one call, all or none; return what became of each."""
        call = self._connection.client.write_keys
        return call(self._job_id, writes, scope=self._scope, timeout_s=limit_s).results


def _check_length(value: bytes) -> None:
    """Raise ValueTooLong if a value that a caller wants to set has no room."""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLong(
            f"a value of {len(value)} bytes is too long for the store: at most {VALUE_BYTES_MAX}"
        )


def _set_if(name: str, held: bytes, expected: keys_pb2.KeyCondition) -> keys_pb2.KeyWrite:
    change = keys_pb2.KeyWrite.CompareAndSet(expected=expected, value=held)
    return keys_pb2.KeyWrite(key=name, compare_and_set=change)


def _by_bytes(held: Sequence[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Yield what fits into one call, also if the answer repeats all values."""
    batch: list[tuple[str, bytes]] = []
    room = PARTS_PER_CALL * PART_BYTES
    for name, value in held:
        if batch and (len(value) > room or len(batch) == WRITES_PER_CALL):
            yield batch
            batch, room = [], PARTS_PER_CALL * PART_BYTES
        batch.append((name, value))
        room -= len(value)
    if batch:
        yield batch


def batches(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Return the items in pieces of a size."""
    return [items[at : at + size] for at in range(0, len(items), size)]
