"""How a store ends its attempts when others are always faster, and when a coordinator forgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from rallypoint.client.errors import Forgotten
from rallypoint.client.values import Scope
from rallypoint.torch import Store, barrier
from rallypoint.torch.store import store_keys
from rallypoint.torch.store.connection import Connection, KeyContended
from rallypoint.torch.store.encoding import Parted
from rallypoint.torch.store.failures import StoreError
from rallypoint.torch.store.store_keys import StoreKeys
from rallypoint.v1 import key_value_service_pb2 as keys_pb2

LIMIT_S = 0.2
ATTEMPTS_MAX = 200
"""Far more than there is time for with pauses."""


class AlwaysLate:
    """A client whose caller finds a key, and finds it changed whenever it changes it."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.revision = 0
        self.calls = 0

    def _count(self) -> None:
        self.calls += 1
        assert self.calls <= ATTEMPTS_MAX, "no end, or no pauses"

    def get_keys(self, job_id: str, keys: list[str], **_: Any) -> keys_pb2.GetKeysResponse:
        self._count()
        self.revision += 1
        kvs = [keys_pb2.KeyValue(key=k, value=self.value, mod_revision=self.revision) for k in keys]
        return keys_pb2.GetKeysResponse(kvs=kvs)

    def compare_and_set_key(self, *_: Any, **__: Any) -> keys_pb2.KeyWritten:
        self._count()
        return keys_pb2.KeyWritten()

    def delete_key(self, *_: Any, **__: Any) -> keys_pb2.KeyWritten:
        self._count()
        return keys_pb2.KeyWritten()

    def write_keys(self, job_id: str, writes: Any, **_: Any) -> keys_pb2.WriteKeysResponse:
        self._count()
        held = keys_pb2.KeyValue(key="k", value=self.value, mod_revision=self.revision)
        results = [keys_pb2.KeyWritten(was_changed=False, kv=held) for _ in writes]
        return keys_pb2.WriteKeysResponse(results=results)


class Forgetful:
    """A client of a coordinator that cannot know whether a change counted."""

    def __init__(self) -> None:
        self.calls = 0

    def _fail(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        assert self.calls <= ATTEMPTS_MAX, "no end, or no pauses"
        raise Forgotten("it has started again")

    write_keys = arrive = _fail

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_keys, "CALL_S_MIN", LIMIT_S)


def keys_of(client: object) -> StoreKeys:
    connection = Connection("127.0.0.1:1", "job", "token", 0, Scope.ROUND)
    connection._client = cast("Any", client)
    return StoreKeys(connection, "p/")


@pytest.mark.parametrize(
    ("operation", "held"),
    [
        pytest.param(lambda s: s.change("k", lambda _: b"new", LIMIT_S), b"v", id="change"),
        pytest.param(lambda s: s.delete("k", LIMIT_S), b"v", id="delete"),
        pytest.param(lambda s: s.pop("k", 0.0, lambda v: (v, b"")), b"v", id="pop-last"),
        pytest.param(lambda s: s.pop("k", 0.0, lambda v: (v, v)), b"v", id="pop"),
        pytest.param(
            lambda s: s.set([("k", b"new")], LIMIT_S), Parted(b"t" * 16, 1).pack(), id="replace"
        ),
    ],
)
def test_operation_ends_when_others_are_always_faster(
    operation: Callable[[StoreKeys], object], held: bytes
) -> None:
    """It pauses between its attempts, and gives up at its deadline with an error that says why."""
    client = AlwaysLate(held)
    with pytest.raises(KeyContended, match="others changed the key 'k'"):
        operation(keys_of(client))

    assert client.calls > 2


def test_set_pauses_before_it_repeats_what_was_forgotten() -> None:
    """A coordinator that starts again and again is asked a few times, until the deadline."""
    client = Forgetful()
    with pytest.raises(Forgotten):
        keys_of(client).set([("k", b"v")], LIMIT_S)

    assert client.calls > 1


def test_barrier_pauses_before_it_repeats_what_was_forgotten() -> None:
    """The ranks arrive again a few times, until the deadline."""
    client = Forgetful()
    store = Store("127.0.0.1:1", "job", "token")
    store.connection._client = cast("Any", client)
    with store, pytest.raises(StoreError, match="has lost the keys"):
        barrier(store, 2, "b", LIMIT_S)

    assert client.calls > 1
