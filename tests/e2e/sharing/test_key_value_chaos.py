"""Writers and watchers of keys lose connections, answers and coordinators, again and again.

The coordinators have no memory. So a watch has one gap for each of them, which is reported, and the
fate of a change that was on its way is unknown, which is reported too. All else is exact.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.machines.proxy import Proxy
from support.processes.key_clients import (
    COUNTER,
    Acknowledged,
    Caller,
    Change,
    Life,
    Op,
    Watcher,
    Writer,
)
from support.processes.mailbox import Worker
from support.processes.world import NEW, World

CLIENTS = 8
"""Writers, and as many watchers. Every other watcher sees the keys of one writer."""
WARM = 6
"""Changes of each writer in a new life before it is disturbed: one of each kind, and one more."""
Reference = dict[Life, dict[int, Change]]
"""Every change that a watcher of all keys has seen, by life and revision."""


class Clients:
    """The clients behind a proxy, and a witness that is not."""

    def __init__(self, world: World, proxy: Proxy, worker: Worker) -> None:
        self.proxy = proxy
        self.witness = Watcher("witness", world.target, worker)
        self.watchers = [
            Watcher(f"watcher {number}", proxy.address, worker, f"w{number}/" * (number % 2))
            for number in range(CLIENTS)
        ]
        self._watches = dict.fromkeys(self.watchers, 1)
        """How many watches each has had when all are connected again."""
        self.writers = [
            Writer(number, proxy.address, worker, self.witness) for number in range(CLIENTS)
        ]

    @property
    def all_watchers(self) -> list[Watcher]:
        return [self.witness, *self.watchers]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let them all work; afterwards none is left, also when the test has failed."""
        started: list[Caller] = []
        try:
            for watcher in self.all_watchers:
                watcher.start()
                started.append(watcher)
            self.await_life(1)
            for writer in self.writers:
                writer.start()
                started.append(writer)
            yield
        finally:
            for caller in started:
                caller.stop()
            for caller in started:
                caller.join()

    def await_life(self, count: int) -> None:
        """Wait until every watcher knows so many coordinators."""
        for watcher in self.all_watchers:
            watcher.wait(lambda watcher=watcher: len(watcher.lives) == count)  # type: ignore[misc]

    def await_writers(self) -> None:
        """Wait until each is connected, and has made every kind of change in this life."""
        life = self.witness.position()[0]
        settled = {writer: writer.settled for writer in self.writers}
        for writer in self.writers:
            writer.wait(
                lambda writer=writer: (  # type: ignore[misc]
                    writer.lives[life] >= WARM and writer.settled > settled[writer]
                )
            )

    def cut(self) -> None:
        """Break all connections when changes were made whose answers are on their way."""
        self.await_writers()
        for watcher, count in self._watches.items():
            watcher.wait(lambda watcher=watcher, count=count: watcher.watches >= count)  # type: ignore[misc]
        self.proxy.withhold_answers()
        marks = self.witness.now.marks
        self.witness.wait(lambda: all(_is_made(writer.pending, marks) for writer in self.writers))
        self._watches = {watcher: watcher.watches + 1 for watcher in self.watchers}
        self.proxy.cut()

    def settle(self) -> dict[str, bytes]:
        """Wait until every change has its fate and every watcher has seen it; return the keys."""
        for writer in self.writers:
            writer.stop()
        for writer in self.writers:
            writer.join()
            assert writer.failure is None, f"{writer.name}: {writer.failure!r}"
        last = {writer.prefix: writer.last_revision for writer in self.writers}
        page = self.witness.call_again("ListKeys")
        for watcher in self.all_watchers:
            until = last.get(watcher.prefix, page.header.revision)
            watcher.wait(lambda watcher=watcher, until=until: watcher.now.revision >= until)  # type: ignore[misc]
        return {kv.key: kv.value for kv in page.kvs}


def _is_made(pending: Op | None, marks: set[Change]) -> bool:
    """Return whether a change is made; the witness cannot tell additions of writers apart."""
    return pending is None or pending.kind == "add" or pending.changes[0] in marks


def check_watchers(clients: Clients, restarts: int, keys: dict[str, bytes]) -> Reference:
    """Check that each watcher saw every change once and in order; return what they saw."""
    reference: Reference = {}
    for watcher in clients.all_watchers:
        assert watcher.gaps == restarts, watcher.name
        for life, notes in watcher.lives.items():
            if not watcher.prefix:
                known = reference.setdefault(life, {})
                known.update(notes.seen)
                assert list(notes.seen) == list(range(notes.begin + 1, notes.revision + 1))
    for watcher in clients.all_watchers:
        for life, notes in watcher.lives.items():
            known = reference[life]
            expected = {
                revision: change
                for revision, change in sorted(known.items())
                if notes.begin < revision <= notes.revision
                and change.key.startswith(watcher.prefix)
            }
            assert expected == {at: one for at, one in notes.seen.items() if at in known}
        assert watcher.now.state == {
            key: value for key, value in keys.items() if key.startswith(watcher.prefix)
        }
    return reference


def check_writers(clients: Clients, reference: Reference, keys: dict[str, bytes]) -> None:
    """Check that every change that was answered was made once, and no other was made."""
    acknowledged = [one for writer in clients.writers for one in writer.acknowledged]
    unknown = [op for writer in clients.writers for op in writer.unknown]
    made = {place: change for one in acknowledged for place, change in places_of(one)}
    assert len(made) == sum(len(one.changes) for one in acknowledged), "two changes in one place"
    seen = {(life, at): one for life, known in reference.items() for at, one in known.items()}
    wrong = {at: (made[at], one) for at, one in seen.items() if at in made and made[at] != one}
    assert wrong == {}
    assert len(made.keys() & seen.keys()) > len(made) / 2

    extra = [change for place, change in seen.items() if place not in made]
    explained = {change for op in unknown for change in op.changes}
    assert [change for change in extra if change.key != COUNTER and change not in explained] == []
    unknown_adds = sum(op.adds for op in unknown)
    for life, known in reference.items():
        at, sum_then = max(
            (at, int(one.value or b"")) for at, one in known.items() if one.key == COUNTER
        )
        adds = sum(
            place[0] == life and place[1] <= at and one.key == COUNTER
            for place, one in made.items()
        )
        assert 0 <= sum_then - adds <= unknown_adds
    last = clients.witness.position()[0]
    adds = sum(place[0] == last and one.key == COUNTER for place, one in made.items())
    assert 0 <= int(keys[COUNTER]) - adds <= unknown_adds


def places_of(one: Acknowledged) -> Iterator[tuple[tuple[Life, int], Change]]:
    """Yield the life and the revision of each change of an answer."""
    for place, change in enumerate(reversed(one.changes)):
        yield (one.life, one.revision - place), change


@pytest.mark.parametrize(
    ("restarts", "cuts"), [(1, 4), pytest.param(10, 100, marks=pytest.mark.nightly)]
)
@pytest.mark.usefixtures("forgetful")
def test_every_change_is_made_and_seen_once(world: World, restarts: int, cuts: int) -> None:
    """What is not exact is reported: the gap of a watch, a change of unknown fate."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    agent = world.agent("a")
    (worker,) = world.mailbox.workers(1)
    with Proxy(world.target) as proxy:
        clients = Clients(world, proxy, worker)
        with clients.running():
            for life in range(1, restarts + 2):
                for _ in range(cuts // (restarts + 1) + 1):
                    clients.cut()
                if life <= restarts:
                    coordinator.kill()
                    coordinator = world.coordinator(port)
                    agent.wait_event("coordinator_reached_again", count=life)
                    clients.await_life(life + 1)
            clients.await_writers()
            keys = clients.settle()
            reference = check_watchers(clients, restarts, keys)
            check_writers(clients, reference, keys)
    replayed: Counter[str] = Counter()
    for writer in clients.writers:
        replayed += writer.replayed

    assert len(world.mailbox.started()) == 1
    assert all(watcher.interruptions >= cuts for watcher in clients.watchers)
    assert replayed["add"] >= cuts / 4 and min(replayed.values()) > 0
