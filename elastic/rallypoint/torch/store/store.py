"""A `torch.distributed.Store` whose keys are at the coordinator.

They belong to a round, or to a run, and only its workers read and write them: a worker of an old
round gets an error that names it. The store does not die with a node. Results, timeouts and errors
are those of TCPStore; docs/torch.md lists the few differences.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist

from rallypoint.client.errors import KeysMissing, RallypointError
from rallypoint.client.values import Scope
from rallypoint.torch.store.connection import Connection, enter, leave
from rallypoint.torch.store.encoding import count_entries, cut_entry, pack_entry
from rallypoint.torch.store.failures import (
    QueueEmptyError,
    StoreError,
    timedelta_s,
    timeout_error,
    to_store_error,
)
from rallypoint.torch.store.store_keys import StoreKeys
from rallypoint.worker.environment import read_membership

if TYPE_CHECKING:
    Text = str | bytes

TIMEOUT = timedelta(seconds=300)
"""How long a call waits for keys unless the caller says otherwise: as long as torch's stores."""
LAUNCHERS = "`rallypoint agent`, or with `torchrun --rdzv-backend=rallypoint`"
"""What starts a worker that may have a store."""


class Store(dist.Store):  # type: ignore[name-defined,misc]  # exported, but not annotated so
    """The keys of a round, or of a run, as a store of torch. Threads may share it.

    A process that was forked from the one that made the store may not use it.
    """

    def __init__(
        self,
        coordinator: str,
        job_id: str,
        token: str,
        *,
        epoch: int = 0,
        scope: Scope = Scope.ROUND,
        prefix: str = "torch/",
        timeout: timedelta = TIMEOUT,
    ) -> None:
        """Connect at the first call.

        Args:
            coordinator: its host:port, or those of several with commas in between.
            job_id: the job.
            token: RALLYPOINT_WORKER_TOKEN, or that of the order of a round.
            epoch: RALLYPOINT_EPOCH; 0: not known.
            scope: what the keys belong to.
            prefix: what the names of all keys begin with at the coordinator: printable, without
                spaces, at most 128 bytes. Stores with the same prefix share keys.
            timeout: how long calls wait for keys.
        """
        super().__init__()
        self._open(Connection(coordinator, job_id, token, epoch, scope), prefix, timeout)

    def _open(self, connection: Connection, prefix: str, timeout: timedelta) -> None:
        self.connection = connection
        """Shared with clones."""
        self.prefix = prefix
        """What the names of all keys begin with at the coordinator."""
        self._keys = StoreKeys(connection, prefix)
        self.set_timeout(timeout)
        enter(connection, self)

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str] = os.environ,
        *,
        scope: Scope = Scope.ROUND,
        prefix: str = "torch/",
        timeout: timedelta = TIMEOUT,
    ) -> Self:
        """Return the store of the worker that this process is.

        Raises:
            NotAWorker: when a variable is missing.
        """
        membership = read_membership(environ, LAUNCHERS)
        return cls(
            *membership[:3], epoch=membership.epoch, scope=scope, prefix=prefix, timeout=timeout
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End the calls of this store, and of its clones when it is the last; keys stay.

        Without it a store lives as long as the process: C++ may hold it.
        """
        leave(self.connection, self)

    def clone(self) -> Store:
        """Return another store with the same keys and connection, and its own timeout."""
        return self.over(self.connection, self.prefix, self.timeout)

    @classmethod
    def over(cls, connection: Connection, prefix: str, timeout: timedelta) -> Self:
        """Return a store that shares a connection; the last of them closes it."""
        store = cls.__new__(cls)
        super(Store, store).__init__()
        store._open(connection, prefix, timeout)
        return store

    def __repr__(self) -> str:
        """Say whose keys these are; the token is a secret."""
        one = self.connection
        return f"Store({one.coordinator!r}, {one.job_id!r}, {one.scope}, prefix={self.prefix!r})"

    # --- Keys -------------------------------------------------------------------------------------

    def set(self, key: Text, value: Text) -> None:
        """Set a key."""
        self.multi_set([key], [value])

    def get(self, key: Text) -> bytes:
        """Return the value of a key; wait for it until the timeout.

        Raises:
            DistStoreError: when it does not exist in time.
        """
        return self.multi_get([key])[0]

    def add(self, key: Text, amount: int) -> int:
        """Add to the number that a key holds, 0 if it does not exist; return the sum.

        Raises:
            ValueError: when it holds no number.
            DistStoreError: when it fails otherwise.
        """
        name = self._name(key)
        with self._errors():
            return self._keys.add(name, amount, self._limit_s)

    def check(self, keys: Sequence[Text]) -> bool:
        """Return whether all of these keys exist, as a key or as a queue."""
        texts = _texts(keys)
        with self._errors():
            return self._keys.has(texts)

    def wait(self, keys: Sequence[Text], timeout: timedelta | None = None) -> None:
        """Wait until all of these keys exist.

        Args:
            keys: which ones.
            timeout: how long to wait; None: the store's.

        Raises:
            DistStoreError: when they do not in time; it names those that are missing.
        """
        limit = self.timeout if timeout is None else timeout
        texts = _texts(keys)
        with self._errors(texts, limit):
            self._keys.wait([self._keys.name_of(key) for key in texts], timedelta_s(limit))

    def compare_set(self, key: Text, expected: Text, desired: Text) -> bytes:
        """Set a key if it holds what is expected; return what it holds then.

        A key that does not exist is as expected if `expected` is empty; otherwise `expected` is
        returned.
        """
        before, after = to_bytes(expected), to_bytes(desired)

        def decide(held: bytes | None) -> bytes | None:
            is_expected = not before if held is None else held == before
            return after if is_expected else None

        name = self._name(key)
        with self._errors():
            held, was_set = self._keys.change(name, decide, self._limit_s)
        if was_set:
            return after
        return before if held is None else held

    def append(self, key: Text, value: Text) -> None:
        """Append to the value of a key; one that does not exist counts as empty."""
        name, more = self._name(key), to_bytes(value)
        with self._errors():
            self._keys.append(name, more, self._limit_s)

    def delete_key(self, key: Text) -> bool:
        """Delete a key; return whether it existed."""
        name = self._name(key)
        with self._errors():
            return self._keys.delete(name, self._limit_s)

    def num_keys(self) -> int:
        """Return how many keys there are."""
        with self._errors():
            return self._keys.count()

    def list_keys(self) -> list[str]:
        """Return the keys, sorted by their names at the coordinator."""
        with self._errors():
            return self._keys.keys()

    # --- The extended interface -------------------------------------------------------------------

    def has_extended_api(self) -> bool:
        """Return True: C++ may use `append`, `multi_get` and `multi_set`."""
        return True

    def multi_get(self, keys: Sequence[Text]) -> list[bytes]:
        """Return the values of keys; wait for all of them until the timeout.

        Raises:
            DistStoreError: when they do not all exist in time.
        """
        limit = self.timeout
        texts = _texts(keys)
        with self._errors(texts, limit):
            return self._keys.get([self._keys.name_of(key) for key in texts], timedelta_s(limit))

    def multi_set(self, keys: Sequence[Text], values: Sequence[Text]) -> None:
        """Set several keys, in order.

        Raises:
            DistStoreError: when there are not as many values as keys.
        """
        if len(keys) != len(values):
            raise StoreError("multiSet keys and values vectors must be of same size")
        held = [to_bytes(value) for value in values]
        names = [self._name(key) for key in keys]
        with self._errors():
            self._keys.set(list(zip(names, held, strict=True)), self._limit_s)

    def queue_push(self, key: Text, value: Text) -> None:
        """Append a value to a queue."""
        entry = pack_entry(to_bytes(value))
        with self._errors():
            self._keys.append(self._keys.queue_of(_text(key)), entry, self._limit_s)

    def queue_pop(self, key: Text, block: bool = True) -> bytes:
        """Take the first value of a queue; wait for one until the timeout.

        Args:
            key: name of the queue.
            block: False: do not wait.

        Raises:
            DistStoreError: when there is none in time.
            QueueEmptyError: when there is none, and the caller does not wait.
        """
        text, limit = _text(key), self.timeout
        wait_s = timedelta_s(limit) if block else 0.0
        with self._errors([text], limit, is_queue=not block):
            return self._keys.pop(self._keys.queue_of(text), wait_s, cut_entry)

    def queue_len(self, key: Text) -> int:
        """Return how many values a queue has."""
        with self._errors():
            held = self._keys.peek(self._keys.queue_of(_text(key)), self._limit_s)
        return count_entries(held)

    getNumKeys, deleteKey = num_keys, delete_key  # what C++ calls these

    # --- Inside -----------------------------------------------------------------------------------

    @property
    def _limit_s(self) -> float:
        return timedelta_s(self.timeout)

    def _name(self, key: Text) -> str:
        """Return the name of a key that may be created."""
        text = _text(key)
        with self._errors():
            self._keys.note_name(text, self._limit_s)
        return self._keys.name_of(text)

    @contextmanager
    def _errors(
        self, keys: Sequence[str] = (), timeout: timedelta = TIMEOUT, *, is_queue: bool = False
    ) -> Iterator[None]:
        """Raise what torch's callers expect.

        Args:
            keys: that are waited for.
            timeout: how long.
            is_queue: the caller does not wait for this queue.
        """
        try:
            yield
        except KeysMissing as error:
            if is_queue:
                raise QueueEmptyError("queue is empty") from None
            name_of: Callable[[str], str] = self._keys.name_of
            missing = tuple(key for key in keys if name_of(key) in error.keys) or tuple(keys)
            raise timeout_error(missing, timeout, self._has_lost_keys()) from error
        except RallypointError as error:
            raise to_store_error(error, self.connection.job_id) from error

    def _has_lost_keys(self) -> bool:
        try:
            return self.connection.has_lost_keys()
        except RallypointError:
            return False  # the timeout is raised anyway


def _texts(keys: Any) -> list[str]:
    """Return several keys as texts.

    Raises:
        TypeError: when it is one key: its letters would be waited for.
    """
    if isinstance(keys, str | bytes):
        raise TypeError(f"a list of keys is needed, not the key {keys!r}")
    return [_text(key) for key in keys]


def _text(key: Any) -> str:
    """Return a key as text; other programs may have one as bytes."""
    if isinstance(key, str):
        return key
    return to_bytes(key).decode("utf-8", "surrogateescape")


def to_bytes(value: Any) -> bytes:
    """Return a value as bytes.

    Raises:
        TypeError: when it is neither text nor bytes.
    """
    match value:
        case bytes():
            return value
        case str():
            return value.encode()
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            raise TypeError(f"a store holds text or bytes, not {type(value).__name__}")
