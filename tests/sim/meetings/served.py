"""The coordinator's side of the calls: what BarrierService does, without its server."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rallypoint.server.access.tokens import WorkerTokens
from rallypoint.server.api.barriers.messages import broken_status, released_message, to_arrive
from rallypoint.server.api.barriers.reading import read_barriers
from rallypoint.server.api.barriers.service import BarrierService
from rallypoint.server.api.barriers.waits import Wait
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.server.contract.errors import refusal_status
from rallypoint.server.contract.pace import Pace
from rallypoint.server.contract.pages import to_page
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import InputRefused
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from sim.meetings.callers import Call
from sim.meetings.plan import size_of
from sim.rules.rules import Violation
from sim.world.wire import carried

if TYPE_CHECKING:
    from sim.world.server import Server

T = TypeVar("T")


class Calls:
    """The calls that have arrived at one life of the coordinator."""

    def __init__(self, server: Server, tokens: WorkerTokens) -> None:
        self._server = server
        self._tokens = tokens
        unused = cast(Any, None)
        self._service = BarrierService(unused, server.barriers, server.state, tokens, unused)
        self._new: dict[int, tuple[inputs.Arrive, Call, int]] = {}
        """Submitted, by the identity of the input, and shown by no turn yet; each with how long the
        server had been late by then."""
        self._refused: dict[int, Refusal] = {}
        self._waiting: list[tuple[inputs.Arrive, Call, Wait, int]] = []
        """Each with how long the server had been late when it arrived."""

    def take(self, call: Call) -> None:
        """Convert a call that has arrived, and submit it."""
        server, world = self._server, self._server.world
        request = barrier_pb2.ArriveRequest.FromString(call.request)
        left_s = (call.deadline_ms - world.clock.now_ms) / 1000
        if left_s <= 0:
            return
        try:
            claim = self._tokens.claim(request.job_id, call.metadata)
            arrive = to_arrive(request, claim, left_s, max(world.unix_ms(), server.state.epoch))
        except InvalidMessage as invalid:
            raise Violation("Contract", str(invalid)) from invalid
        except InputRefused as refused:
            self._refuse(call, refused.refusal)
            return
        self._new[id(arrive)] = arrive, call, server.lateness_ms
        server.submit_call(arrive)

    def stepped(self, input: inputs.Input, refusal: Refusal | None) -> None:
        """Note why an arrival was refused."""
        if refusal is not None and id(input) in self._new:
            self._refused[id(input)] = refusal

    def finish_turn(self) -> None:
        """Answer what the turn has decided, as after every turn."""
        state = self._server.state
        for key, (arrive, call, lateness_ms) in list(self._new.items()):
            if key in self._refused:
                self._refuse(call, self._refused.pop(key))
                continue
            try:
                wait = self._service._find(state, arrive)
            except InputRefused as refused:
                self._refuse(call, refused.refusal)
                continue
            self._waiting.append((arrive, call, wait, lateness_ms))
        self._new.clear()
        for entry in list(self._waiting):
            if entry[2].ended is not None:
                self._waiting.remove(entry)
                self._end(entry[0], entry[1], entry[2])
        self._check_deadlines()

    def _end(self, arrive: inputs.Arrive, call: Call, wait: Wait) -> None:
        ended, world = wait.ended, self._server.world
        assert ended is not None
        size = size_of(call.meeting, call.caller.speaker.header)
        world.meeting_rule.ended(self._server, arrive, size, ended)
        if ended.broken is not None:
            status = broken_status(arrive.key, ended)
            world.meetings.answer(call, status.SerializeToString(), is_status=True)
        else:
            message = released_message(ended, self._server.barriers)
            world.meetings.answer(call, message.SerializeToString(), is_status=False)

    def list(self, job_id: JobId, page_size: int) -> None:
        """Let someone read the open barriers of a job, page after page; 0: of the usual size."""
        listed: list[barrier_pb2.Barrier] = []
        token, has_more = "", True
        while has_more:
            request = barrier_pb2.ListBarriersRequest(
                job_id=job_id, page_size=page_size, page_token=token
            )
            size, token = to_page(carried(request))
            reading = read_barriers(cast(Any, self), Pace(), job_id, size, token)
            try:
                page = _finish(reading)
            except InputRefused:  # there is no such job
                return
            listed += carried(page).barriers
            token, has_more = page.next_page_token, bool(page.next_page_token)
        self._server.world.meeting_rule.listed(self._server, job_id, listed)

    async def read(self, answer: Callable[[State, int], T]) -> T:
        """Return what a reader sees, as `Coordinator.read` does."""
        return answer(self._server.state, self._server.now_ms())

    def _refuse(self, call: Call, refusal: Refusal) -> None:
        world = self._server.world
        world.note("call refused", refusal.kind.value)
        status = refusal_status(refusal).SerializeToString()
        world.meetings.answer(call, status, is_status=True)

    def _check_deadlines(self) -> None:
        """Check that no call is open beyond its deadline, unless the coordinator was suspended."""
        server = self._server
        for _, call, _, lateness_ms in self._waiting:
            is_late = call.deadline_ms < server.world.clock.now_ms
            if is_late and lateness_ms == server.lateness_ms:
                text = f"a call waits {server.world.clock.now_ms - call.deadline_ms} ms too long"
                raise Violation("AnswersComeFirst", text)


def _finish(reading: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that has nothing to wait for."""
    try:
        reading.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise AssertionError("it waits")
