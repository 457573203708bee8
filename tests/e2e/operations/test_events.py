"""Readers of events lose connections and coordinators, again and again, while a job runs.

The coordinators have no memory. So each of them costs every reader one gap, which is reported. All
else is exact: nothing is missing and nothing comes twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rallypoint.client import Client
from rallypoint.client.errors import ClientClosed, EventsCompacted
from rallypoint.v1 import event_service_pb2 as events_pb2
from support.machines.proxy import Proxy
from support.processes.feed import LIMIT_S
from support.processes.world import NEW, World

Event = events_pb2.Event
CORDONED = events_pb2.EVENT_KIND_NODE_CORDONED
OUTAGE_S_MAX = 60.0
NOISE = 4
"""Events between two interruptions, which no reader waits for."""


class Follower(threading.Thread):
    """Reads events until its client is closed; after a gap, from the oldest that is kept."""

    def __init__(self, address: str, job_id: str = "", kinds: tuple[int, ...] = ()) -> None:
        super().__init__(name=f"events of {job_id or 'all jobs'} {kinds}")
        self.job_id, self.kinds = job_id, kinds
        self.lives: list[list[Event]] = [[]]
        """What it has read, from each coordinator."""
        self.gaps: list[int] = []
        """Epochs of the coordinators that have reported one."""
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        self._client = Client(address, limit_s=OUTAGE_S_MAX)

    def run(self) -> None:
        try:
            while True:
                self._follow()
        except ClientClosed:
            pass
        except BaseException as error:
            self._note(error)
            raise

    def _follow(self) -> None:
        """Read one coordinator's events, from the first to the gap."""
        kinds = [events_pb2.EventKind.ValueType(kind) for kind in self.kinds]
        try:
            with self._client.watch_events(self.job_id, kinds=kinds, after=0) as watch:
                for event in watch:
                    with self._changed:
                        self.lives[-1].append(event)
                        self._changed.notify_all()
        except EventsCompacted as gap:
            with self._changed:
                self.gaps.append(gap.epoch)
                self.lives.append([])
                self._changed.notify_all()

    def _note(self, error: BaseException) -> None:
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    def wait(self, is_done: Callable[[Follower], bool]) -> None:
        with self._changed:
            in_time = self._changed.wait_for(lambda: is_done(self) or self.failure, LIMIT_S)
        assert self.failure is None, f"{self.name}: {self.failure!r}"
        assert in_time, f"{self.name}: {[len(life) for life in self.lives]}, gaps {self.gaps}"

    def wait_mark(self, mark: str) -> None:
        """Wait until it has read a mark."""
        self.wait(lambda one: any(mark == mark_of(event) for event in one.lives[-1]))

    def wants(self, event: Event) -> bool:
        kind = events_pb2.EventKind.Value(f"EVENT_KIND_{str(event.WhichOneof('detail')).upper()}")
        return self.job_id in ("", event.job_id) and (not self.kinds or kind in self.kinds)

    def stop(self) -> None:
        self._client.close()


def mark_of(event: Event) -> str:
    return event.node_cordoned.reason


@contextmanager
def following(*followers: Follower) -> Iterator[None]:
    try:
        for one in followers:
            one.start()
        yield
    finally:
        for one in followers:
            one.stop()
        for one in followers:
            one.join()


def check(witness: Follower, others: list[Follower], marks: list[list[str]]) -> None:
    """Check that each has read all the events that it asked for, once and in order."""
    for follower in (witness, *others):
        everything = [event for life in follower.lives for event in life]
        sequences = [event.sequence for event in everything]
        assert sequences == sorted(set(sequences)), follower.name
        assert len(follower.gaps) == len(marks) - 1, follower.name
        assert follower.gaps == sorted(set(follower.gaps))
        for life, made in zip(follower.lives, marks, strict=True):
            assert made == [mark_of(event) for event in life if mark_of(event) in made]
    for follower in others:
        for life, known in zip(follower.lives, witness.lives, strict=True):
            wanted = [event for event in known if follower.wants(event)]
            # When a coordinator was killed, one of the two may have read more.
            least = min(len(life), len(wanted))
            assert [told(one) for one in wanted[:least]] == [told(one) for one in life[:least]]


def told(event: Event) -> Event:
    """Return an event without its time, which is for people alone."""
    copy = Event()
    copy.CopyFrom(event)
    copy.ClearField("time")
    return copy


@pytest.mark.parametrize(
    ("restarts", "cuts"), [(2, 6), pytest.param(10, 100, marks=pytest.mark.nightly)]
)
@pytest.mark.usefixtures("forgetful")
def test_every_event_is_read_once(world: World, restarts: int, cuts: int) -> None:
    """Over all connections; and the end of a coordinator's memory is reported, once each."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    agent = world.agent("a", "--max-restarts=100")
    world.mailbox.workers(1)
    marks: list[list[str]] = []
    with Proxy(world.target) as proxy, Client(world.target, limit_s=OUTAGE_S_MAX) as operator:
        witness = Follower(world.target)
        others = [
            Follower(proxy.address),
            Follower(proxy.address, world.job_id),
            Follower(proxy.address, world.job_id, (CORDONED,)),
            Follower(proxy.address, kinds=(CORDONED, events_pb2.EVENT_KIND_ROUND_SEALED)),
        ]
        with following(witness, *others):
            for life in range(restarts + 1):
                marks.append([])
                for number in range(cuts // (restarts + 1) + 1):
                    if number % 2:
                        proxy.withhold_answers()  # so that some events are sent and lost
                    for _ in range(NOISE):
                        operator.uncordon_node(world.job_id, "x")
                        operator.cordon_node(world.job_id, "x", reason="noise")
                    proxy.cut()
                    marks[-1].append(f"mark {life}.{number}")
                    operator.cordon_node(world.job_id, "y", reason=marks[-1][-1])
                    for one in (witness, *others):
                        one.wait_mark(marks[-1][-1])
                (worker,) = world.mailbox.workers(1, round=life + 1)
                worker.tell("exit", "3")
                world.mailbox.workers(1, round=life + 2)
                if life < restarts:
                    coordinator.kill()
                    coordinator = world.coordinator(port)
                    agent.wait_event("coordinator_reached_again", count=life + 1)
                    for one in (witness, *others):
                        one.wait(lambda one, count=life + 1: len(one.gaps) == count)  # type: ignore[misc]
            (worker,) = world.mailbox.workers(1, round=restarts + 2)
            worker.tell("exit", "0")
            witness.wait(lambda one: one.lives[-1][-1].HasField("node_departed"))
            others[0].wait(lambda one: one.lives[-1][-1].HasField("node_departed"))
    check(witness, others, marks)
    last = [event.WhichOneof("detail") for event in witness.lives[-1]]

    assert 0 == agent.wait()
    assert "round_settled" in last and last[-2:] == ["run_closed", "node_departed"]
    assert told(others[0].lives[-1][-1]) == told(witness.lives[-1][-1])
