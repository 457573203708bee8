"""`rallypoint.torch.Store` does what torch's stores do, or docs/torch.md lists the difference."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from torch import __version__ as TORCH_VERSION

from rallypoint.client.errors import StaleRound
from rallypoint.client.sync_transport import Transport
from rallypoint.torch import Store
from rallypoint.torch.store.encoding import MARK
from rallypoint.torch.store.failures import StoreError, to_store_error
from rallypoint.worker.environment import NotAWorker
from support.stores.cases import CASES, KINDS, TORCH, make, read_differences, run
from support.stores.room import LIMIT_S, Room, rooms

DIFFERENCES = read_differences()
RANKS = 24
_prefixes = (f"test{number}/" for number in count())


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    with rooms() as room:
        yield room


@pytest.fixture
def store(room: Room) -> Iterator[Store]:
    with room.store(prefix=next(_prefixes)) as store:
        yield store


def expected(case: str, kind: str) -> str:
    return DIFFERENCES.get(case, {}).get(kind, CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_store_gives_what_is_listed(case: str, store: Store) -> None:
    """The result of all stores, except where the table has another one."""
    assert expected(case, "Store") == run(case, store)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_stores_of_torch_give_what_is_listed(kind: str, tmp_path: Path) -> None:
    """The results of the table, and of all other cases, are really theirs."""
    if not TORCH_VERSION.startswith("2.13."):
        pytest.skip("the table is about the stores of torch 2.13")
    results = {case: run(case, make(kind, tmp_path)) for case in CASES}

    assert {case: expected(case, kind) for case in CASES} == results


def test_table_lists_only_differences() -> None:
    """Every row has two different results, and one is what the other stores give."""
    alike = [case for case, results in DIFFERENCES.items() if len(set(results.values())) == 1]

    assert [] == alike
    assert len(DIFFERENCES) > 10


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in CASES if "queue" not in case])
def test_cpp_gets_the_same_results(case: str, room: Room) -> None:
    """C++ calls it through a PrefixStore, also when Python refers to it no more."""
    prefixed = TORCH.PrefixStore("p", room.store(prefix=next(_prefixes)))
    gc.collect()
    if "list_keys" in case:
        assert run(case, prefixed) == "NotImplementedError"
        return

    assert expected(case, "Store") == run(case, prefixed)


def test_error_names_the_missing_keys(store: Store) -> None:
    """In the words of TCPStore."""
    store.set("here", "1")
    with pytest.raises(StoreError) as failed:
        store.wait(["here", "b c", "d"], timedelta(milliseconds=50))

    assert "wait timeout after 50ms, keys: b c, d" == str(failed.value)


def test_one_key_is_no_list_of_keys(store: Store) -> None:
    """As in torch's stores: its letters are not waited for."""
    for call in (store.wait, store.check, store.multi_get):
        with pytest.raises(TypeError, match="a list of keys is needed, not the key 'key'"):
            call("key")


def test_waiting_blocks_no_other_call(store: Store) -> None:
    """A thread waits for a key while others set and read; then it gets it."""
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.append(store.get("late")))
    waiting.start()
    for number in range(50):
        store.set(f"key {number}", "v")
        assert number + 1 == store.add("n", 1)
    popping = threading.Thread(target=lambda: found.append(store.queue_pop("q")))
    popping.start()
    store.set("late", "1")
    waiting.join(LIMIT_S)
    store.queue_push("q", "2")
    popping.join(LIMIT_S)

    assert [b"1", b"2"] == found


@pytest.mark.parametrize("is_cpp", [False, True], ids=["python", "cpp"])
def test_signal_interrupts_a_wait(is_cpp: bool, store: Store) -> None:
    """A launcher whose handler raises does not wait for a key meanwhile."""

    class Interrupted(Exception):
        pass

    def handle(*_: object) -> None:
        raise Interrupted

    waiting = TORCH.PrefixStore("p", store) if is_cpp else store
    before = signal.signal(signal.SIGUSR1, handle)
    sending = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        sending.start()
        with pytest.raises(Interrupted):
            waiting.wait(["missing"], timedelta(seconds=60))
    finally:
        sending.join()
        signal.signal(signal.SIGUSR1, before)
    store.set("k", "v")

    assert b"v" == store.get("k")


def test_changes_of_many_threads_all_count(store: Store) -> None:
    """Appends, comparisons and queues lose nothing, and give nothing twice."""
    popped: list[bytes] = []

    def work(number: int) -> None:
        own = store.clone()
        for step in range(10):
            own.append("log", f"{number}{step},")
            own.queue_push("q", f"{number}{step}")
        for _ in range(10):
            popped.append(own.queue_pop("q"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    everything = sorted(f"{number}{step}".encode() for number in range(4) for step in range(10))

    assert everything == sorted(popped)
    assert everything == sorted(store.get("log").split(b",")[:-1])
    assert 0 == store.queue_len("q")


@pytest.mark.parametrize("method", ["append", "queue_push"])
def test_many_ranks_append_with_one_call_each(
    room: Room, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many append to one key at once: none has to try again."""
    calls: list[str] = []
    run = Transport.run

    def counted(transport: Transport, call: Any, limit_s: float | None = None) -> Any:
        calls.append(call.method.path)
        return run(transport, call, limit_s)

    monkeypatch.setattr(Transport, "run", counted)
    prefix, together = next(_prefixes), threading.Barrier(RANKS)

    def work(rank: int) -> None:
        with room.store(prefix=prefix) as own:
            together.wait(LIMIT_S)
            getattr(own, method)("log", f"{rank:02},")

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    made = len(calls)
    with room.store(prefix=prefix) as store:
        everything = [f"{rank:02},".encode() for rank in range(RANKS)]
        if method == "append":
            assert b"".join(everything) == b"".join(
                sorted(one + b"," for one in store.get("log").split(b",")[:-1])
            )
        else:
            assert everything == sorted(store.queue_pop("log") for _ in range(RANKS))

    assert RANKS == made


def test_appended_value_grows_beyond_one_key(room: Room) -> None:
    """Its beginning moves to parts, which go with it; what several append at once all counts."""
    prefix, together = next(_prefixes), threading.Barrier(4)

    def work(number: int) -> None:
        with room.store(prefix=prefix) as own:
            together.wait(LIMIT_S)
            for _ in range(20):
                own.append("k", b"%d" % number * 5_000)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    with room.store(prefix=prefix) as store:
        value = store.get("k")
        pieces = Counter(value[at : at + 5_000] for at in range(0, len(value), 5_000))
        assert {b"%d" % number * 5_000: 20 for number in range(4)} == pieces
        store.append("k", b"tail")
        assert value + b"tail" == store.get("k")
        store.delete_key("k")
        left = [kv.key for kv in store.connection.client.list_keys(room.job_id, prefix)]

    assert [] == left


@pytest.mark.parametrize("cut", range(len(MARK) + 2))
def test_no_append_makes_a_value_look_like_our_own(store: Store, cut: int) -> None:
    """Wherever the mark of long values is cut, what was appended is what is read."""
    value = MARK + b"+" + b"x" * 24
    for first, rest in ((None, value), (value[:cut], value[cut:]), (b"", value)):
        store.delete_key("k")
        if first is None:
            store.append("k", rest[:cut])
            store.append("k", rest[cut:])
        else:
            store.set("k", first)
            store.append("k", rest)

        assert value == store.get("k")


@pytest.mark.long  # a job may write large values at a limited rate
def test_long_values_leave_nothing_behind(room: Room) -> None:
    """Their parts go when they are replaced or deleted."""
    prefix = next(_prefixes)
    with room.store(prefix=prefix) as store:
        for _ in range(6):  # the keys of a job have 32 MiB together
            store.set("k", b"x" * 6_000_000)
            assert 6_000_000 == len(store.get("k"))
        store.set("k", "short")
        store.set("k", b"y" * 200_000)
        store.delete_key("k")
        client = store.connection.client
        left = [kv.key for kv in client.list_keys(room.job_id, prefix)]

    assert [] == left


def test_many_long_values_are_read_at_once(store: Store) -> None:
    """Answers of more than 1 MiB are split."""
    keys = [f"{number}" for number in range(40)]
    store.multi_set(keys, [b"%d" % number * 30_000 for number in range(40)])
    store.wait(keys)

    assert store.check(keys)
    assert [b"%d" % number * 30_000 for number in range(40)] == store.multi_get(keys)


def test_value_that_looks_like_our_own_is_kept(store: Store) -> None:
    """The mark of long values is only a mark when the store has written it."""
    for value in (b"\0rallypoint\0+", b"\0rallypoint\0" + b"x" * 65_530):
        store.set("k", value)

        assert value == store.get("k")
        assert b"new" == store.compare_set("k", value, "new")


def test_error_of_a_stopped_round() -> None:
    """There may be no later round yet."""
    stopped = to_store_error(StaleRound("stopped", expected=3, actual=3), "j")
    assert str(stopped) == "this store belongs to round 3 of job j, which has been stopped"
    over = to_store_error(StaleRound("over", expected=4, actual=3), "j")
    assert str(over).endswith("round 3 of job j, which is over: the current round is 4")


def test_worker_of_an_old_round_is_refused() -> None:
    """The error names the round, also for a call that waits when the round ends."""
    with rooms() as room, room.store() as old:
        old.set("k", "old")
        errors: list[str] = []

        def wait() -> None:
            try:
                old.get("never")
            except StoreError as error:
                errors.append(str(error))

        waiting = threading.Thread(target=wait)
        waiting.start()
        room.begin_round()
        waiting.join(LIMIT_S)
        for call in (lambda: old.set("k", "v"), lambda: old.check(["k"]), old.num_keys):
            with pytest.raises(StoreError, match="belongs to round 1 of job job") as failed:
                call()
            errors.append(str(failed.value))
        with room.store() as new:
            assert not new.check(["k"])

        assert 4 == len(errors)
        assert all("the current round is 2" in one for one in errors[1:]), errors
        assert "round" in errors[0]


FORKING = """
import os
from rallypoint.torch import Store
from rallypoint.torch.store.failures import StoreError

store = Store.from_environment(prefix="forking/")
store.set("k", "v")
if pid := os.fork():
    os.waitpid(pid, 0)
    print(store.get("k").decode())
else:
    try:
        store.get("k")
    except StoreError as error:
        os.write(1, f"{error}\\n".encode())
    os._exit(0)
"""


def test_forked_child_gets_an_error(room: Room) -> None:
    """Its parent's store still works. The parent is a worker: it runs no coordinator beside it."""
    argv = [sys.executable, "-W", "ignore", "-c", FORKING]
    done = subprocess.run(
        argv,
        env=os.environ | room.environ,
        capture_output=True,
        text=True,
        timeout=4 * LIMIT_S,  # it imports torch
        check=True,
    )
    error, value = done.stdout.splitlines()

    assert "this process was forked from the one that made the store" in error
    assert "v" == value


def test_closed_store_fails_and_its_clone_works(room: Room) -> None:
    """The connection ends with the last of them."""
    store = room.store()
    clone = store.clone()
    store.close()
    clone.set("k", "v")
    clone.close()

    with pytest.raises(StoreError, match="the client was closed"):
        clone.get("k")


def test_environment_of_a_worker_is_needed(room: Room) -> None:
    """The error names the first variable that is missing."""
    environ = room.environ
    del environ["RALLYPOINT_WORKER_TOKEN"]

    with pytest.raises(NotAWorker, match="RALLYPOINT_WORKER_TOKEN is not set"):
        Store.from_environment(environ)


@pytest.mark.parametrize("prefix", ["a b", "x" * 129, "\n"])
def test_prefix_is_checked(room: Room, prefix: str) -> None:
    """The contract accepts no spaces, and names have to stay short."""
    with pytest.raises(ValueError, match="prefix"):
        room.store(prefix=prefix)
