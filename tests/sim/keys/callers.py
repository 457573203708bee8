"""Simulated workers that use the key-value store, as a training script would.

Each worker makes one call after the other. Some watch keys, too. The network loses calls, answers
and streams. A call that got no answer is made again, with the same request id and with what the
worker knew before the first attempt. A watch that was cut off continues where it was.

Everything here is drawn from a separate generator, so the other choices of a seed stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import scope_pb2
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from sim.keys.limits import USUAL, draw_limits
from sim.keys.plan import REQUESTS, RESPONSES, Method, Op, draw_op

if TYPE_CHECKING:
    from sim.world.process import Group, Process
    from sim.world.server import Server
    from sim.world.world import World

OPS_MAX = 8
"""Calls of one worker in a round, besides its watch."""
ATTEMPTS_MAX = 6
THINK_MS_MAX = 1_200
LATENCY_MS_MAX = 40
RETRY_MS_MAX = 800
CALL_MS = (1_000, 4_000, 15_000)
"""How long a call may last."""
LOST_PERCENT = 8
"""Of the calls, and of the answers."""
CUT_PERCENT = 6
"""Of the answers to watches: the stream breaks instead."""
NOTICED_MS_MAX = 3_000
"""How long the end of a stream may go unnoticed on one side."""
WATCH_SHARE = 0.5
"""Of the workers: those that watch."""
ACTIVE_PERCENT = 40
"""Of the seeds."""
UNAVAILABLE: int = grpc.StatusCode.UNAVAILABLE.value[0]
NEXT = frozenset(
    code.value[0]
    for code in (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
)
"""After these statuses the worker makes its next call; after any other it has done."""
COMPACTED: int = grpc.StatusCode.OUT_OF_RANGE.value[0]
PREFIXES = ("", "", "a", "n")
"""What workers watch."""


@dataclass(slots=True, eq=False)
class Call:
    """One attempt of one call, or one stream of a watch."""

    keys: Keys
    process: Process
    method: Method
    request: Any
    deadline_ms: int
    """By the clock of the world; far away for a watch."""
    take: Callable[[Call, Any], None]
    """Takes the answer, a message of the stream, or the status."""
    life: int = 0
    """Life of the coordinator that it has reached."""
    boot: int = 0
    """Number of its process."""
    floors: dict[int, int] = field(default_factory=dict)
    """By life: the highest revision that anyone in the job knew when it began."""
    known_life: int | None = None
    """Life of the coordinator that sent what the caller knew before the first attempt."""
    is_done: bool = False
    """The caller has its answer, or waits no more."""
    is_begun: bool = False
    """A watch has got its first answer."""
    clear_ms: int = 0
    """Nothing that is sent on the stream later arrives before this."""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What shows who calls."""
        return ((WORKER_TOKEN_KEY, self.process.order.worker_token),)


class Caller:
    """One worker process that makes one call after the other."""

    def __init__(self, keys: Keys, process: Process) -> None:
        self.keys = keys
        self.world = keys.world
        self.process = process
        self._left = keys.rng.randint(0, OPS_MAX)
        self._seen: dict[str, keys_pb2.KeyValue] = {}
        self._known = keys_pb2.KeyValueHeader(epoch=process.order.header.epoch)
        self._known_life = keys.rule.sealed_in(process.group.key)
        self._before: tuple[keys_pb2.KeyValueHeader, int | None] = (self._known, self._known_life)
        """The same before the first attempt of the current call."""
        self._op: Op | None = None
        self._attempts = 0

    def begin(self) -> None:
        """Make the next call after a while."""
        self._op = None
        if self._left > 0:
            self._left -= 1
            self.world.clock.after(self.keys.draw(THINK_MS_MAX), self._draw)

    def _draw(self) -> None:
        rng, job_id = self.keys.rng, self.process.agent.host.plan.job_id
        self._op = draw_op(rng, job_id, self._seen)
        if self._op.method is Method.WRITE:
            self._op.request.request_id = self.keys.next_id()
        known = keys_pb2.KeyValueHeader()
        known.CopyFrom(self._known)
        self._before = known, self._known_life
        self._attempts = 0
        self._call()

    def _call(self) -> None:
        op, world = self._op, self.world
        if op is None or self._attempts >= ATTEMPTS_MAX:
            return
        self._attempts += 1
        if self._attempts > 1 and op.method is Method.WRITE:
            op.request.known.CopyFrom(self._before[0])
        deadline_ms = world.clock.now_ms + self.keys.rng.choice(CALL_MS)
        call = Call(self.keys, self.process, op.method, _copied(op), deadline_ms, self._take)
        call.known_life = self._before[1]
        if self.keys.begin_call(call):
            world.clock.at(deadline_ms, partial(self._give_up, call))

    def _give_up(self, call: Call) -> None:
        """Make the call again whose answer did not come in time."""
        if not call.is_done:
            call.is_done = True
            self.world.clock.after(self.keys.draw(RETRY_MS_MAX), self._call)

    def _take(self, call: Call, answer: Any) -> None:
        if call.is_done or not self.process.is_alive:
            return
        call.is_done = True
        if not isinstance(answer, Status):
            self.keys.rule.answered(call, answer)
            self._learn(call, answer)
            self.begin()
        elif answer.code == UNAVAILABLE:
            self.world.clock.after(self.keys.draw(RETRY_MS_MAX), self._call)
        elif answer.code in NEXT:
            self.begin()

    def _learn(self, call: Call, answer: Any) -> None:
        self._known, self._known_life = answer.header, call.life
        found = list(getattr(answer, "kvs", ()))
        found += (one.kv for one in getattr(answer, "results", ()) if one.HasField("kv"))
        self._seen.update((one.key, one) for one in found)


def _copied(op: Op) -> Any:
    request = REQUESTS[op.method]()
    request.CopyFrom(op.request)
    return request


class Watcher:
    """One worker process that watches keys until it ends."""

    def __init__(self, keys: Keys, process: Process) -> None:
        self.keys = keys
        self.world = keys.world
        self.process = process
        rng = keys.rng
        self.request = keys_pb2.WatchKeysRequest(
            job_id=process.agent.host.plan.job_id,
            scope=scope_pb2.SCOPE_RUN if rng.random() < 0.5 else scope_pb2.SCOPE_ROUND,
            prefix=rng.choice(PREFIXES),
        )
        self.life: int | None = None
        """Life of the coordinator that its revision is about."""
        self._call: Call | None = None
        self._page = ""
        self._first: tuple[keys_pb2.KeyValueHeader, int] | None = None
        """Header of the first page of a list, and the life of the coordinator that sent it."""

    @property
    def revision(self) -> int:
        """Every change up to this one has arrived; -1: it begins wherever it may."""
        return int(self.request.start_revision) - 1

    def begin(self) -> None:
        """Begin to watch, or continue."""
        far_ms = self.world.clock.now_ms + 10_000_000
        request = keys_pb2.WatchKeysRequest()
        request.CopyFrom(self.request)
        call = Call(self.keys, self.process, Method.WATCH, request, far_ms, self._take)
        self._call = call
        if self.keys.begin_call(call):
            self.keys.streams.append(call)
            self.world.clock.after(CALL_MS[1], partial(self._check_begun, call))

    def _check_begun(self, call: Call) -> None:
        """Give a stream up whose first answer has not come."""
        if not call.is_begun:
            self._again(call)

    def _again(self, call: Call) -> None:
        if call is self._call and not call.is_done:
            call.is_done = True
            self.world.clock.after(self.keys.draw(RETRY_MS_MAX), self.begin)

    def _take(self, call: Call, answer: Any) -> None:
        if call is not self._call or call.is_done or not self.process.is_alive:
            return
        if not isinstance(answer, Status):
            self.keys.rule.watched(self, call, answer)
            call.is_begun = True
            self.life = call.life
            self.request.start_revision = answer.header.revision + 1
            self.request.epoch = answer.header.epoch
        elif answer.code == UNAVAILABLE:
            self._again(call)
        else:
            call.is_done = True
            if answer.code == COMPACTED:
                self._list_later()

    def _list_later(self) -> None:
        self.world.coverage.counts["event", "watch compacted"] += 1
        self._page, self._first = "", None
        self.world.clock.after(self.keys.draw(RETRY_MS_MAX), self.list)

    def list(self) -> None:
        """Read the keys, to watch them from there on."""
        request = keys_pb2.ListKeysRequest(
            job_id=self.request.job_id,
            scope=self.request.scope,
            prefix=self.request.prefix,
            page_size=self.keys.rng.choice((0, 2)),
            page_token=self._page,
        )
        deadline_ms = self.world.clock.now_ms + CALL_MS[0]
        call = Call(self.keys, self.process, Method.LIST, request, deadline_ms, self._take_page)
        self._call = call
        if self.keys.begin_call(call):
            self.world.clock.at(deadline_ms, partial(self._list_again, call))

    def _list_again(self, call: Call) -> None:
        if not call.is_done:
            call.is_done = True
            self.world.clock.after(self.keys.draw(RETRY_MS_MAX), self.list)

    def _take_page(self, call: Call, answer: Any) -> None:
        if call is not self._call or call.is_done or not self.process.is_alive:
            return
        if isinstance(answer, Status):
            if answer.code == UNAVAILABLE:
                self._list_again(call)
            call.is_done = True
            return
        call.is_done = True
        self.keys.rule.answered(call, answer)
        self._first = self._first or (answer.header, call.life)
        self._page = answer.next_page_token
        if self._page:
            self.world.clock.after(0, self.list)
            return
        header, self.life = self._first
        self.request.start_revision, self.request.epoch = header.revision + 1, header.epoch
        self.begin()


class Keys:
    """All callers of a seed, and the network between them and the coordinator."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rule = world.key_rule
        self.rng = Random(f"{world.seed} keys")
        is_active = self.rng.random() * 100 < ACTIVE_PERCENT
        self.is_active = is_active if world.options.keys < 0 else world.options.keys > 0
        self.limits = draw_limits(self.rng) if self.is_active else USUAL
        self.streams: list[Call] = []
        """Watches that were begun."""
        self._requests = 0

    def next_id(self) -> str:
        """Return a request id that was not used before."""
        self._requests += 1
        return f"k{self._requests}"

    def draw(self, most: int) -> int:
        """Return a time."""
        return self.rng.randint(0, most)

    def begin(self, group: Group) -> None:
        """Let the workers of a round, which all run, begin their scripts."""
        if not self.is_active or self.world.is_calm:
            return
        for process in group.living:
            Caller(self, process).begin()
            if self.rng.random() < WATCH_SHARE:
                watcher = Watcher(self, process)
                begin = self.rng.choice((watcher.begin, watcher.list))
                self.world.clock.after(self.draw(THINK_MS_MAX), begin)

    def begin_call(self, call: Call) -> bool:
        """Send a call; return False if its process is gone."""
        process = call.process
        if not process.is_alive or process.agent.is_gone:
            return False
        call.floors = self.rule.floors(process.agent.host.plan.job_id)
        self.rule.called(call)
        if not self._loses(process):
            self.world.clock.after(self.draw(LATENCY_MS_MAX), partial(self._deliver, call))
        return True

    def _loses(self, process: Process) -> bool:
        """Return whether the network loses what is sent from or to a process now."""
        if process.host.unreachable_until_ms > self.world.clock.now_ms:
            return True
        return not self.world.is_calm and self.rng.random() * 100 < LOST_PERCENT

    def _deliver(self, call: Call) -> None:
        server = self.world.server_of(call.process.host.plan.job_id)
        if server is not None and server.stalled_until_ms <= self.world.clock.now_ms:
            if server.writes.hold_up(partial(self._deliver, call)):
                return
            call.life, call.boot = server.life, server.boot
            server.key_calls.take(call)
        else:
            self.refuse(call, Status(code=UNAVAILABLE))

    def refuse(self, call: Call, status: Status) -> None:
        """Send the status that ends a call."""
        self._send(call, Status.FromString(status.SerializeToString()))

    def answer(self, call: Call, answer: Any) -> None:
        """Send the answer to a call."""
        self._send(call, RESPONSES[call.method].FromString(answer.SerializeToString()))

    def _send(self, call: Call, answer: Any) -> None:
        if not self._loses(call.process):
            self._arrive_later(call, answer)
        elif call.method is Method.WATCH:
            self.cut(call)

    def push(self, call: Call, message: Any) -> bool:
        """Send a message of a stream; return False if it breaks instead."""
        is_cut = not self.world.is_calm and self.rng.random() * 100 < CUT_PERCENT
        if is_cut or call.process.host.unreachable_until_ms > self.world.clock.now_ms:
            self.cut(call)
            return False
        answer = RESPONSES[Method.WATCH].FromString(message.SerializeToString())
        self._arrive_later(call, answer)
        return True

    def _arrive_later(self, call: Call, answer: Any) -> None:
        call.clear_ms = max(call.clear_ms, self.world.clock.now_ms + self.draw(LATENCY_MS_MAX))
        self.world.clock.at(call.clear_ms, partial(call.take, call, answer))

    def cut(self, call: Call) -> None:
        """Break a stream: its caller learns it in a while."""
        at_ms = max(call.clear_ms, self.world.clock.now_ms + self.draw(NOTICED_MS_MAX))
        broken = Status(code=UNAVAILABLE)
        self.world.clock.at(at_ms, partial(call.take, call, broken))

    def coordinator_gone(self, server: Server) -> None:
        """Break every stream to a coordinator that is gone."""
        gone = [call for call in self.streams if call.boot == server.boot]
        self.streams = [call for call in self.streams if call.boot != server.boot]
        for call in gone:
            if not call.is_done:
                self.cut(call)
