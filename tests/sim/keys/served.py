"""The coordinator's side of the calls: what KeyValueService does, without its server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from google.rpc.status_pb2 import Status

from rallypoint.server.access.tokens import WorkerTokens
from rallypoint.server.api.keys import messages, reading
from rallypoint.server.api.keys.service import PROGRESS_S, KeyValueService
from rallypoint.server.api.keys.waits import KeyWait
from rallypoint.server.contract.calls import InvalidMessage, LimitExceeded
from rallypoint.server.contract.errors import limit_status, refusal_status
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.keyspace import Answer
from rallypoint.server.shell.coordinator import InputRefused
from sim.keys.callers import Call
from sim.keys.plan import REQUESTS, Method
from sim.rules.rules import Violation

if TYPE_CHECKING:
    from sim.world.server import Server

TURN_MS_MAX = 20
"""Longest time until the turn that a call causes; it may take several calls."""
PROGRESS_MS = int(PROGRESS_S * 1000)
BUSY_MS_MAX = 2_000
BUSY_PERCENT = 20
"""Of the answers to a watch: its caller reads the next one only after a while."""


@dataclass(slots=True, eq=False)
class OpenGet:
    """A read that waits for keys."""

    call: Call
    get: messages.Get
    wait: KeyWait
    lateness_ms: int
    """How long the coordinator had been suspended when it arrived."""
    is_overdue: bool = False


@dataclass(slots=True, eq=False)
class OpenWatch:
    """A watch."""

    call: Call
    watch: messages.Watch
    cursor: reading.Cursor
    is_begun: bool = False
    sent: int = 0
    """Revision of the latest answer."""
    due_ms: int = 0
    """When it learns the revision, if there is no change."""
    busy_until_ms: int = 0


class KeyCalls:
    """The calls that have arrived at one life of the coordinator."""

    def __init__(self, server: Server, tokens: WorkerTokens) -> None:
        self._server = server
        self._tokens = tokens
        self._waits = server.keys
        unused = cast(Any, None)
        self._service = KeyValueService(unused, server.keys, server.state, tokens)
        self._writes: dict[int, tuple[inputs.WriteKeys, Call]] = {}
        """Submitted, by the identity of the input; no turn has stepped it yet."""
        self._refused: dict[int, Refusal] = {}
        self._reads: list[tuple[Call, messages.Get | messages.Page]] = []
        self._gets: list[OpenGet] = []
        self._watches: list[OpenWatch] = []

    # --- arrival ---

    def take(self, call: Call) -> None:
        """Convert a call that has arrived, and look at it in the next turn."""
        server = self._server
        left_s = (call.deadline_ms - server.world.clock.now_ms) / 1000
        if left_s <= 0:
            return
        request = REQUESTS[call.method].FromString(call.request.SerializeToString())
        try:
            claim = self._tokens.claim(request.job_id, call.metadata)
            self._submit(call, request, claim, left_s)
        except InvalidMessage as invalid:
            raise Violation("Contract", str(invalid)) from invalid
        except InputRefused as refused:
            self._refuse(call, refused.refusal)

    def _submit(self, call: Call, request: Any, claim: inputs.Claim, left_s: float) -> None:
        server = self._server
        clock_ms = max(server.world.unix_ms(), server.state.epoch)
        if call.method is Method.WRITE:
            writes = messages.to_writes(request, claim, clock_ms)
            self._writes[id(writes)] = writes, call
            server.submit_call(writes, server.world.keys.draw(TURN_MS_MAX))
            return
        if call.method is Method.WATCH:
            watch = messages.to_watch(request, claim, clock_ms)
            cursor = reading.Cursor(watch, call.process.host.name, self._waits)
            self._watches.append(OpenWatch(call, watch, cursor))
        elif call.method is Method.LIST:
            self._reads.append((call, messages.to_page(request, claim)))
        else:
            self._submit_get(call, messages.to_get(request, claim, left_s))
        server.look_soon(server.world.keys.draw(TURN_MS_MAX))

    def _submit_get(self, call: Call, get: messages.Get) -> None:
        server = self._server
        if not get.timeout_ms:
            self._reads.append((call, get))
            return
        wait = KeyWait(get.claim.job_id, [])
        wait.changed.set()
        one = OpenGet(call, get, wait, server.lateness_ms)
        self._gets.append(one)
        server.world.clock.after(get.timeout_ms, partial(self._overdue, one))

    def _overdue(self, one: OpenGet) -> None:
        one.is_overdue = True
        self._server.look_soon()

    def stepped(self, input: inputs.Input, refusal: Refusal | None) -> None:
        """Note why writes were refused."""
        if refusal is not None and id(input) in self._writes:
            self._refused[id(input)] = refusal

    # --- turns ---

    def finish_turn(self) -> None:
        """Answer what the turn has decided, and all who look at keys."""
        for key, (writes, call) in list(self._writes.items()):
            if key in self._refused:
                self._refuse(call, self._refused.pop(key))
            else:
                answer = self._waits.take_answer(writes.answer_id)
                self._answer(call, self._written(call, answer))
        self._writes.clear()
        for call, read in self._reads:
            self._read(call, read)
        self._reads.clear()
        for one in list(self._gets):
            if self._look(one):
                self._gets.remove(one)
                self._waits.remove(one.wait)
        for watch in list(self._watches):
            if watch.call.is_done or not self._serve(watch):
                self._watches.remove(watch)
                watch.cursor.end()
        self._check()

    def _written(self, call: Call, answer: Answer) -> Any:
        """Return the answer to a request that changes keys, as the service does."""
        keys = [one.key for one in call.request.writes]
        return messages.written_message(answer, self._server.keys, keys)

    def _read(self, call: Call, read: messages.Get | messages.Page) -> None:
        state, now_ms = self._server.state, self._server.now_ms()
        try:
            if isinstance(read, messages.Get):
                self._answer(call, reading.get_keys(read, state, now_ms).answer)
            else:
                self._answer(call, reading.list_keys(read, state, now_ms))
        except InputRefused as refused:
            self._refuse(call, refused.refusal)
        except LimitExceeded as full:
            self._send(call, limit_status(full))

    def _look(self, one: OpenGet) -> bool:
        """Read the keys that a call waits for; return whether the call is over."""
        call, get, server = one.call, one.get, self._server
        is_late = call.deadline_ms < server.world.clock.now_ms
        if is_late and one.lateness_ms == server.lateness_ms:
            raise Violation("AnswersComeFirst", "a read waits longer than its call")
        if call.is_done and is_late:
            return True
        if not (one.wait.changed.is_set() or one.is_overdue):
            return False
        try:
            found = self._service._look(get, one.wait, server.state, server.now_ms())
        except InputRefused as refused:
            self._refuse(call, refused.refusal)
            return True
        if not found.missing:
            self._answer(call, found.answer)
            return True
        if one.is_overdue:
            missing = [place.key for place in found.missing]
            self._send(call, messages.missing_status(missing, get.timeout_ms / 1000))
            return True
        return False

    def _serve(self, one: OpenWatch) -> bool:
        """Send a watch what there is; return whether it continues."""
        server, world = self._server, self._server.world
        state, now_ms = server.state, server.now_ms()
        try:
            if not one.is_begun:
                one.is_begun = True
                return self._push(one, one.cursor.begin(state, now_ms))
            is_quiet = world.clock.now_ms >= one.due_ms
            is_busy = world.clock.now_ms < one.busy_until_ms
            is_woken = one.cursor.wait.changed.is_set()
            latest = self._waits.latest(one.watch.claim.job_id)
            if is_busy or not (is_quiet or is_woken):
                return True
            if not (is_woken or latest > one.sent):
                self._await_progress(one)
                return True
            answer = one.cursor.take(state, now_ms)
        except InputRefused as refused:
            self._refuse(one.call, refused.refusal)
            return False
        if answer.events or (is_quiet and answer.header.revision > one.sent):
            return self._push(one, answer)
        if is_quiet:
            self._await_progress(one)
        return True

    def _push(self, one: OpenWatch, message: Any) -> bool:
        world, keys = self._server.world, self._server.world.keys
        one.sent = message.header.revision
        self._await_progress(one)
        if keys.rng.random() * 100 < BUSY_PERCENT:
            one.busy_until_ms = world.clock.now_ms + keys.draw(BUSY_MS_MAX)
            world.clock.at(one.busy_until_ms, self._server.look_soon)
        elif one.cursor.wait.changed.is_set():
            self._server.look_soon()
        return keys.push(one.call, message)

    def _await_progress(self, one: OpenWatch) -> None:
        one.due_ms = self._server.world.clock.now_ms + PROGRESS_MS
        self._server.world.clock.at(one.due_ms, self._server.look_soon)

    def _answer(self, call: Call, message: Any) -> None:
        world = self._server.world
        world.key_rule.answering(self._server, call, message)
        world.keys.answer(call, message)

    def _refuse(self, call: Call, refusal: Refusal) -> None:
        self._server.world.note("key call refused", refusal.kind.value)
        if call.method is not Method.WRITE:  # the coverage counts what the core refuses
            self._server.world.coverage.counts["refusal", refusal.kind.value] += 1
        self._send(call, refusal_status(refusal))

    def _send(self, call: Call, status: Status) -> None:
        self._server.world.keys.refuse(call, status)

    def _check(self) -> None:
        """Check that no one waits for what exists."""
        server, now_ms = self._server, self._server.world.clock.now_ms
        rule = server.world.key_rule
        for get in self._gets:
            rule.waits_for_keys(server, get)
        for watch in self._watches:
            if not watch.cursor.wait.changed.is_set() and watch.busy_until_ms <= now_ms:
                rule.waits_for_changes(server, watch)
