"""Workers that write and watch keys, and that lose connections and coordinators all the time.

Each is a thread with a separate connection. It calls as the contract of KeyValueService says: it
sends a change again with the same id and with what it knew before, and continues a watch where it
was interrupted. It notes what it learns, for the test to compare.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import key_value_service_pb2_grpc as keys_grpc
from rallypoint.v1 import scope_pb2
from rallypoint.wire.channel import client_options
from support.core.key_calls import change
from support.processes.feed import LIMIT_S
from support.processes.mailbox import Worker

COUNTER = "counter"
"""All writers add to it."""
PAUSE_S = 0.05
"""Between two attempts."""
Life = int
"""Epoch of a coordinator that has no memory of earlier ones."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a watcher has seen."""

    key: str
    value: bytes | None
    """None: it was deleted."""


@dataclass(frozen=True, slots=True)
class Op:
    """A change, or several in one step, that a writer makes."""

    kind: str
    writes: list[keys_pb2.KeyWrite]
    changes: tuple[Change, ...]
    """What watchers must see. The value of the counter is left out: it depends on the others."""

    @property
    def adds(self) -> bool:
        """Whether it adds to the counter, which is its last change then."""
        return self.changes[-1].key == COUNTER


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A change, or several in one step, that was answered."""

    life: Life
    revision: int
    """Of the last one."""
    changes: tuple[Change, ...]
    """What watchers must see; empty when nothing was changed."""


class Caller(threading.Thread):
    """A client of KeyValueService with the token of a worker."""

    def __init__(self, name: str, address: str, worker: Worker) -> None:
        super().__init__(name=name)
        self._address, self._worker = address, worker
        self._metadata = (("rallypoint-worker-token", worker.env["RALLYPOINT_WORKER_TOKEN"]),)
        self._channel, self._stub = self._connect()
        self.changed = threading.Condition()
        """Notified whenever it has learned something."""
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  # the root of the thread; the test gets it
            self.failure = error
        finally:
            self._channel.close()
            with self.changed:
                self.changed.notify_all()

    def work(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Let it end soon."""
        self.stopping.set()

    def wait(self, is_reached: Callable[[], bool]) -> None:
        """Wait until the condition holds, which may change when this caller learns something."""
        with self.changed:
            in_time = self.changed.wait_for(lambda: self.failure or is_reached(), LIMIT_S)
        assert self.failure is None, f"{self.name}: {self.failure!r}"
        assert in_time, f"{self.name} came to nothing"

    def call(self, method: str, **fields: Any) -> Any:
        """Make one attempt, in the scope of the run."""
        request = getattr(keys_pb2, f"{method}Request")(
            job_id=self._worker.env["RALLYPOINT_JOB_ID"], scope=scope_pb2.SCOPE_RUN, **fields
        )
        return getattr(self._stub, method)(request, metadata=self._metadata, timeout=LIMIT_S)

    def call_again(self, method: str, **fields: Any) -> Any:
        """Make attempts until one is answered, for a call that changes nothing."""
        while True:
            try:
                return self.call(method, **fields)
            except grpc.RpcError as error:
                self.recover(error)

    def recover(self, error: grpc.RpcError) -> None:
        """Connect again after a broken connection; raise any other error."""
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise error
        self._channel.close()
        self.stopping.wait(PAUSE_S)
        self._channel, self._stub = self._connect()

    def _connect(self) -> tuple[grpc.Channel, Any]:
        channel = grpc.insecure_channel(self._address, options=client_options())
        return channel, keys_grpc.KeyValueServiceStub(channel)


@dataclass(slots=True)
class Notes:
    """What a watcher has learned of one life."""

    begin: int
    """The revision at which it began."""
    revision: int
    """Every change up to this one has come."""
    state: dict[str, bytes]
    """The keys, from the list at the begin and the changes since."""
    seen: dict[int, Change] = field(default_factory=dict)
    """By revision, in the order in which they came."""
    marks: set[Change] = field(default_factory=set)


class Watcher(Caller):
    """Watches the keys with a prefix. After a gap that was reported it lists them."""

    def __init__(self, name: str, address: str, worker: Worker, prefix: str = "") -> None:
        super().__init__(name, address, worker)
        self.prefix = prefix
        self.lives: dict[Life, Notes] = {}
        self.gaps = 0
        self.watches = 0
        """How often a watch has begun."""
        self.interruptions = 0
        self._epoch = 0
        self._call: Any = None

    @property
    def now(self) -> Notes:
        """What it knows of the latest life."""
        return self.lives[self._epoch]

    def position(self) -> tuple[Life, int]:
        """Return the latest life, and up to which revision it knows that."""
        with self.changed:
            return self._epoch, self.now.revision

    def work(self) -> None:
        self._list()
        while not self.stopping.is_set():
            try:
                self._watch()
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.OUT_OF_RANGE:
                    self.gaps += 1
                    self._list()
                elif not self.stopping.is_set():
                    self.interruptions += 1
                    self.recover(error)

    def stop(self) -> None:
        """Let it end soon, also when nothing changes."""
        self.stopping.set()
        if self._call is not None:
            self._call.cancel()

    def _list(self) -> None:
        page = self.call_again("ListKeys", prefix=self.prefix)
        assert not page.next_page_token, "more keys than a page holds"
        header = page.header
        assert header.epoch not in self.lives, "a gap in a life"
        state = {kv.key: kv.value for kv in page.kvs}
        with self.changed:
            self.lives[header.epoch] = Notes(header.revision, header.revision, state)
            self._epoch = header.epoch
            self.changed.notify_all()

    def _watch(self) -> None:
        notes = self.now
        since = {"start_revision": notes.revision + 1, "epoch": self._epoch}
        self._call = self.call("WatchKeys", prefix=self.prefix, **since)
        if self.stopping.is_set():
            self._call.cancel()  # `stop` may have cancelled the one before
        has_begun = False
        for answer in self._call:
            self.watches += not has_begun
            has_begun = True
            assert answer.header.epoch == self._epoch
            with self.changed:
                for event in answer.events:
                    self._take(notes, event)
                assert answer.header.revision >= notes.revision
                notes.revision = answer.header.revision
                self.changed.notify_all()

    def _take(self, notes: Notes, event: keys_pb2.KeyEvent) -> None:
        kv = event.kv
        assert kv.mod_revision > notes.revision, "a change came twice, or out of order"
        change = Change(kv.key, None if event.was_deleted else kv.value)
        notes.seen[kv.mod_revision] = change
        notes.marks.add(change)
        notes.revision = kv.mod_revision
        if change.value is None:
            del notes.state[kv.key]
        else:
            notes.state[kv.key] = change.value


class Writer(Caller):
    """Makes one change after the other; sends each again until its fate is known."""

    def __init__(self, number: int, address: str, worker: Worker, witness: Watcher) -> None:
        super().__init__(f"writer {number}", address, worker)
        self.prefix, self._witness = f"w{number}/", witness
        epoch = int(worker.env["RALLYPOINT_EPOCH"])
        self._known = keys_pb2.KeyValueHeader(epoch=epoch)
        self.acknowledged: list[Acknowledged] = []
        self.unknown: list[Op] = []
        """Their fate is unknown: a coordinator has lost its memory since the first attempt."""
        self.replayed: Counter[str] = Counter()
        """How often an answer was lost, and another attempt got it, by kind."""
        self.lives: Counter[Life] = Counter()
        """How many were answered in each life."""
        self.pending: Op | None = None
        self._claim_life: Life = 0
        """The life in which the latest swap was answered; 0: its fate is unknown."""

    @property
    def settled(self) -> int:
        """How many changes have a known fate, or are known to have an unknown one."""
        return len(self.acknowledged) + len(self.unknown)

    @property
    def last_revision(self) -> int:
        """The latest revision that it knows."""
        return self._known.revision

    def work(self) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            for op in self._ops(number):
                self._make(op, f"{self.prefix}{number}-{op.kind}")

    def _ops(self, number: int) -> list[Op]:
        """Return one change of each kind. The last two do not succeed if they are made twice."""
        own, claim, value = f"{self.prefix}own", f"{self.prefix}claim{number}", b"%d" % number
        add, put = change(COUNTER, add={"amount": 1}), change(own, put={"value": value + b"-both"})
        added, both = Change(COUNTER, None), Change(own, value + b"-both")
        swap = {"expected": {"mod_revision": 0}, "value": value}
        return [
            Op("add", [add], (added,)),
            Op("put", [change(own, put={"value": value})], (Change(own, value),)),
            Op("both", [put, add], (both, added)),
            Op("swap", [change(claim, compare_and_set=swap)], (Change(claim, value),)),
            Op("delete", [change(claim, delete={})], (Change(claim, None),)),
        ]

    def _make(self, op: Op, request_id: str) -> None:
        self.pending = op
        before: tuple[Life, int] = 0, 0
        again: dict[str, Any] = {}
        while True:
            try:
                answer = self.call("WriteKeys", request_id=request_id, writes=op.writes, **again)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DATA_LOSS:
                    self._give_up(op)
                    return
                before = self._witness.position()
                self.recover(error)
                again = {"known": self._known}
            else:
                self._note(op, answer, before)
                return

    def _give_up(self, op: Op) -> None:
        header = self.call_again("ListKeys", page_size=1).header
        assert header.epoch > self._known.epoch, "the coordinator forgot something while it lived"
        self._known, self._claim_life = header, 0
        with self.changed:
            self.unknown.append(op)
            self.changed.notify_all()

    def _note(self, op: Op, answer: Any, before: tuple[Life, int]) -> None:
        """Note an answer; `before` is what the witness knew before the last attempt."""
        life, revision, changes = answer.header.epoch, answer.header.revision, op.changes
        self._known = answer.header
        if before[0] == life and before[1] >= revision:
            self.replayed[op.kind] += 1
        result = answer.results[-1]
        match op.kind:
            case "add" | "both":
                changes = (*changes[:-1], Change(COUNTER, b"%d" % result.sum))
            case "swap":
                assert result.was_changed, "a swap was made twice"
                self._claim_life = life
            case "delete":
                assert result.was_changed or self._claim_life != life, "deleted twice"
                changes = changes if result.was_changed else ()
        with self.changed:
            self.acknowledged.append(Acknowledged(life, revision, changes))
            self.lives[life] += 1
            self.changed.notify_all()
