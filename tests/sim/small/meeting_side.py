"""The workers of a small world who meet at one barrier, and the calls between them and the core.

The shell is that of `meetings/callers.py` and `meetings/served.py` without time and chance: a
worker calls whenever it likes, and again when it learns that there will be no answer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.server.coordinator import InputRefused
from rallypoint.server.core.messages import effects as fx
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.barrier import Ended
from rallypoint.server.rpc.barriers.views import broken_status, released_message
from rallypoint.server.rpc.convert.barriers import to_arrive
from rallypoint.server.rpc.errors import refusal_status
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from sim.meetings.callers import AGAIN, NEXT
from sim.meetings.plan import Speaker, request_of, size_of
from sim.rules.rules import Violation
from sim.small.messages import CLOCK_MS, tokens_of
from sim.small.server_side import ServerSide
from sim.small.small import JOB_ID, Call, Script, Worker
from sim.world.wire import carried

DATA_LOSS: int = grpc.StatusCode.DATA_LOSS.value[0]
CALL_MS = 4_000
"""How long a call may last."""


class MeetingSide(ServerSide):
    """One move in progress: what it does to calls."""

    # --- workers ---

    def _call(self, number: int, place: int) -> None:
        """Let a worker arrive at the barrier, or make the same call again."""
        worker, meeting = self.sites[number].workers[place], self.arena.meeting
        if meeting is None:
            self._add(number, worker)
            return
        script, header = worker.script, worker.order.header
        speaker = Speaker(JOB_ID, worker.rank, worker.local_rank == 0, "", header)
        request = request_of(meeting, speaker, f"r{worker.pid}.{script.met}")
        request.first_epoch = script.first_epoch
        first_epoch = script.first_epoch or max(script.epoch, header.epoch)
        script = script._replace(is_waiting=True, first_epoch=first_epoch)
        self._put_script(number, worker.pid, script)
        self.ghosts.hear("began", request.payload, meeting)
        call = Call(
            site=number,
            pid=worker.pid,
            request=request.SerializeToString(),
            token=worker.order.worker_token,
            deadline_ms=self.now_ms + CALL_MS,
            size=size_of(meeting, header),
        )
        self.calls.append(call)

    def _add(self, number: int, worker: Worker) -> None:
        """Let a worker add to a number."""

    def _find_worker(self, number: int, pid: int) -> Worker | None:
        return next((one for one in self.sites[number].workers if one.pid == pid), None)

    def _put_script(self, number: int, pid: int, script: Script) -> None:
        workers = self.sites[number].workers
        changed = (one._replace(script=script) if one.pid == pid else one for one in workers)
        self._put(number, workers=tuple(changed))

    def _give_up(self, place: int) -> None:
        """Let a worker wait no more; its call may still arrive."""
        call = self.calls[place]
        self.calls[place] = call._replace(is_awaited=False)
        worker = self._find_worker(call.site, call.pid)
        if worker is not None and call.is_awaited:
            self._put_script(call.site, call.pid, worker.script._replace(is_waiting=False))

    def _lose(self, place: int) -> None:
        """Lose a call; its worker learns that there will be no answer."""
        self._give_up(place)
        del self.calls[place]

    def _hang_up_calls(self, pid: int) -> None:
        """End the calls of a worker that has ended."""
        for place, call in enumerate(self.calls):
            if call.pid == pid:
                self.calls[place] = call._replace(is_awaited=False)

    def _take_answer(self, place: int) -> None:
        """Let an answer arrive at its worker."""
        call = self.calls[place]
        worker = self._find_worker(call.site, call.pid)
        self._give_up(place)
        del self.calls[place]
        assert worker is not None and call.answer is not None
        script = worker.script._replace(is_waiting=False)
        following = script._replace(met=script.met + 1, first_epoch=0)
        if not call.is_status:
            epoch, revision = self._read_answer(worker, call)
            script = following._replace(epoch=max(script.epoch, epoch), revision=revision)
        else:
            code = Status.FromString(call.answer).code
            self.notes.append(f"answered {grpc_name(code)}")
            if code in NEXT or code == DATA_LOSS:
                script = following
            elif code not in AGAIN:
                script = script._replace(is_over=True)
        self._put_script(call.site, call.pid, script)

    def _read_answer(self, worker: Worker, call: Call) -> tuple[int, int]:
        """Return the epoch and the revision of an answer."""
        assert call.answer is not None
        answer = barrier_pb2.ArriveResponse.FromString(call.answer)
        payload = barrier_pb2.ArriveRequest.FromString(call.request).payload
        self.ghosts.hear("received", payload, answer)
        return answer.epoch, 0

    def _expire_calls(self) -> None:
        """Let the calls end whose deadline is now: none of them may wait at the coordinator."""
        for place, call in reversed(list(enumerate(self.calls))):
            if call.deadline_ms > self.now_ms:
                continue
            if call.arrive is not None and call.is_awaited:
                raise Violation("AnswersComeFirst", f"the call of {call.pid} waits too long")
            self._lose(place)

    # --- the coordinator ---

    def _take_call(self, place: int) -> None:
        """Let a call arrive at the coordinator."""
        assert self.coordinator is not None
        call = self.calls[place]
        request = carried(barrier_pb2.ArriveRequest.FromString(call.request))
        left_s = (call.deadline_ms - self.now_ms) / 1000
        try:
            tokens = tokens_of(self.coordinator.life)
            claim = tokens.claim(JOB_ID, ((WORKER_TOKEN_KEY, call.token),))
        except InputRefused as refused:
            self._refuse_call(place, refused.refusal)
            return
        arrive = to_arrive(request, claim, left_s, CLOCK_MS)
        self.calls[place] = call._replace(life=self.coordinator.life, arrive=arrive)
        refusal = self._step(arrive)
        if refusal is not None:
            self._refuse_call(place, refusal)
        elif self.calls[place].arrive is not None:
            self._find_end(place, arrive)

    def _find_end(self, place: int, arrive: inputs.Arrive) -> None:
        """Answer an arrival whose generation has ended before; else it waits."""
        state, key = self._own_state(), arrive.key
        arrival = state.arrivals.get(key, {}).get(arrive.participant)
        if arrival is not None and arrival.request_id == arrive.request_id:
            return
        ends = state.barriers[key.job_id][key].ends
        self._end_call(place, next(one for one in ends if _has(one, arrive)))

    def _carry_out(self, effect: fx.Effect) -> inputs.Sender | None:
        if not isinstance(effect, fx.BarrierOver):
            return super()._carry_out(effect)
        for place, call in enumerate(self.calls):
            if call.arrive is not None and call.arrive.key == effect.key:
                if _has(effect.ended, call.arrive):
                    self._end_call(place, effect.ended)
        return None

    def _end_call(self, place: int, ended: Ended) -> None:
        """Answer a call whose generation has ended."""
        assert self.coordinator is not None
        call = self.calls[place]
        arrive = call.arrive
        assert arrive is not None
        view = self.arena.server
        self.ghosts.hear("ended", view, arrive, call.size, ended)
        if ended.broken is not None:
            status = broken_status(arrive.key, ended)
            self._answer_call(place, status.SerializeToString(), is_status=True)
        else:
            message = released_message(ended, self.coordinator.state)
            self._answer_call(place, message.SerializeToString(), is_status=False)

    def _refuse_call(self, place: int, refusal: Refusal) -> None:
        self.notes.append(f"refuses the call: {refusal.kind.value}")
        status = refusal_status(refusal)
        self._answer_call(place, status.SerializeToString(), is_status=True)

    def _answer_call(self, place: int, answer: bytes, *, is_status: bool) -> None:
        call = self.calls[place]
        self.calls[place] = call._replace(arrive=None, answer=answer, is_status=is_status)

    def _check_waits(self) -> None:
        """Check that the core still knows the arrival of everyone who waits."""
        for call in self.calls:
            if call.arrive is not None and call.is_awaited:
                key, state = call.arrive.key, self.arena.server.state
                arrival = state.arrivals.get(key, {}).get(call.arrive.participant)
                if arrival is None or arrival.request_id != call.arrive.request_id:
                    raise Violation("AnswersComeFirst", f"the call of {call.pid} has no end")

    def _crash(self) -> None:
        """Kill the coordinator; those who wait there learn it."""
        super()._crash()
        for place, call in reversed(list(enumerate(self.calls))):
            if call.arrive is not None:
                self._lose(place)

    def _tidy(self) -> None:
        super()._tidy()
        kept = (one for one in self.calls if one.is_awaited or one.is_on_its_way)
        self.calls = sorted(kept, key=_order)
        self._check_waits()


def _has(ended: Ended, arrive: inputs.Arrive) -> bool:
    return ended.has(arrive.participant, arrive.request_id)


def _order(call: Call) -> Any:
    return call.site, call.pid, call.request, call.deadline_ms, call.is_awaited


@lru_cache
def grpc_name(code: int) -> str:
    """Return the name of a status."""
    return next(one.name for one in grpc.StatusCode if one.value[0] == code)
