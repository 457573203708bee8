"""The workers of a small world who add to one number, and the one who watches it.

The shell is that of `keys/callers.py` and `keys/served.py` without time and chance. A stream of a
watch is a value; for a move, it is put into the real `Cursor` and `KeyWaits`, and taken out again.
"""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, NamedTuple

from google.rpc.status_pb2 import Status

from rallypoint.server.coordinator import InputRefused
from rallypoint.server.core.messages import effects as fx
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.rpc.convert import keys as convert
from rallypoint.server.rpc.errors import refusal_status
from rallypoint.server.rpc.keys.reading import Cursor
from rallypoint.server.rpc.keys.views import written_message
from rallypoint.server.rpc.keys.waits import KeyWaits
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import scope_pb2
from rallypoint.wire.credentials import WORKER_TOKEN_KEY
from sim.keys.callers import UNAVAILABLE
from sim.keys.plan import REQUESTS, Method
from sim.small.meeting_side import CALL_MS, MeetingSide
from sim.small.messages import CLOCK_MS, tokens_of
from sim.small.small import JOB_ID, Call, Watching, Worker

KEY = "n"


class Said(NamedTuple):
    """A call as the rule sees it."""

    method: Method
    data: bytes
    round: int
    run: int
    life: int = 0
    is_begun: bool = False
    known_life: int | None = None

    @property
    def request(self) -> Any:
        """What was sent."""
        return REQUESTS[self.method].FromString(self.data)

    @property
    def process(self) -> Any:
        """Who has called."""
        header = SimpleNamespace(run=self.run)
        return SimpleNamespace(order=SimpleNamespace(number=self.round, header=header))

    @property
    def floors(self) -> dict[int, int]:
        """What others knew; here no one asks."""
        return {}


class KeySide(MeetingSide):
    """One move in progress: what it does to keys and those who watch them."""

    # --- workers ---

    def _add(self, number: int, worker: Worker) -> None:
        script, header = worker.script, worker.order.header
        is_again = script.first_epoch > 0
        known = keys_pb2.KeyValueHeader(epoch=script.first_epoch, revision=script.first_revision)
        add = keys_pb2.KeyWrite(key=KEY, add=keys_pb2.KeyWrite.Add(amount=1))
        request = keys_pb2.WriteKeysRequest(
            job_id=JOB_ID,
            scope=scope_pb2.SCOPE_RUN,
            writes=[add],
            request_id=f"r{worker.pid}.{script.met}",
            known=known if is_again else None,
        )
        script = script._replace(is_waiting=True)
        if not is_again:
            epoch = max(script.epoch, header.epoch)
            script = script._replace(first_epoch=epoch, first_revision=script.revision)
        self._put_script(number, worker.pid, script)
        data, token = request.SerializeToString(), worker.order.worker_token
        self.calls.append(Call(number, worker.pid, data, token, self.now_ms + CALL_MS))
        self.ghosts.hear("called", self._said(worker, Method.WRITE, data))

    def _said(self, worker: Worker, method: Method, data: bytes, life: int = 0) -> Said:
        header = worker.order.header
        return Said(method, data, header.number, header.run, life)

    def _read_answer(self, worker: Worker, call: Call) -> tuple[int, int]:
        if call.size:
            return super()._read_answer(worker, call)
        assert call.answer is not None
        answer = keys_pb2.WriteKeysResponse.FromString(call.answer)
        said = self._said(worker, Method.WRITE, call.request, call.life)
        self.ghosts.hear("answered", said, answer)
        return answer.header.epoch, answer.header.revision

    def _watch(self, number: int, place: int) -> None:
        """Let a worker open a stream: for the next change, or where it was."""
        worker = self.sites[number].workers[place]
        known = [one for one in self.watches if one.pid == worker.pid]
        watch = known[0] if known else Watching(number, worker.pid, -1, 0, 0)
        self.watches = [one for one in self.watches if one.pid != worker.pid]
        self.watches.append(watch._replace(is_open=True, is_on_its_way=True))

    def _close(self, watch: Watching, *, is_over: bool = False) -> Watching:
        """Return a watch without a stream."""
        bare = Watching(watch.site, watch.pid, watch.revision, watch.epoch, watch.seen_life)
        return bare._replace(is_over=is_over)

    def _cut_watch(self, place: int) -> None:
        self.watches[place] = self._close(self.watches[place])

    def _take_change(self, place: int) -> None:
        """Let a message of a stream arrive at its worker."""
        watch = self.watches[place]
        (life, data), *rest = watch.down
        worker = self._find_worker(watch.site, watch.pid)
        assert worker is not None
        if not life:
            is_over = Status.FromString(data).code != UNAVAILABLE
            self.watches[place] = self._close(watch, is_over=is_over)
            return
        answer = keys_pb2.WatchKeysResponse.FromString(data)
        request = self._request(watch).SerializeToString()
        said = self._said(worker, Method.WATCH, request, life)
        said = said._replace(is_begun=not watch.is_first)
        seen = SimpleNamespace(revision=watch.revision, life=watch.seen_life)
        self.ghosts.hear("watched", seen, said, answer)
        self.watches[place] = watch._replace(
            revision=answer.header.revision,
            epoch=answer.header.epoch,
            seen_life=life,
            is_first=False,
            down=tuple(rest),
        )

    def _request(self, watch: Watching) -> keys_pb2.WatchKeysRequest:
        return keys_pb2.WatchKeysRequest(
            job_id=JOB_ID,
            scope=scope_pb2.SCOPE_RUN,
            prefix=KEY,
            start_revision=watch.revision + 1,
            epoch=watch.epoch,
        )

    # --- the coordinator ---

    def _take_call(self, place: int) -> None:
        call = self.calls[place]
        if call.size:
            super()._take_call(place)
            return
        assert self.coordinator is not None
        life, request = self.coordinator.life, keys_pb2.WriteKeysRequest.FromString(call.request)
        claim = tokens_of(life).claim(JOB_ID, ((WORKER_TOKEN_KEY, call.token),))
        self._answered = None
        refusal = self._step(convert.to_writes(request, claim, CLOCK_MS))
        if refusal is not None:
            self._refuse_call(place, refusal)
            return
        assert self._answered is not None
        answer = written_message(self._answered.answer, self.coordinator.state, [KEY])
        self.calls[place] = call._replace(life=life)
        self._answer_call(place, answer.SerializeToString(), is_status=False)

    _answered: fx.WriteAnswered | None = None

    def _carry_out(self, effect: fx.Effect) -> inputs.Sender | None:
        if not isinstance(effect, fx.WriteAnswered):
            return super()._carry_out(effect)
        self._answered = effect
        for place, watch in enumerate(self.watches):
            if watch.next:
                open = _Open(self, watch)
                open.waits.note(effect, self._own_state())
                self.watches[place] = open.value()
        return None

    def _wake(self, jobs: Collection[JobId]) -> None:
        super()._wake(jobs)
        if JOB_ID in jobs:
            self.watches = [one._replace(is_woken=bool(one.life)) for one in self.watches]

    def _take_watch(self, place: int) -> None:
        """Let the request of a watch arrive; the coordinator looks in a later turn."""
        assert self.coordinator is not None
        self.watches[place] = self.watches[place]._replace(
            is_on_its_way=False, life=self.coordinator.life, is_woken=True
        )

    def _look(self, place: int) -> None:
        """Send a watch what there is."""
        assert self.coordinator is not None
        watch, state, now_ms = self.watches[place], self._own_state(), self._journal_ms()
        open = _Open(self, watch)
        try:
            look = open.cursor.take if watch.next else open.cursor.begin
            message = look(state, now_ms)
        except InputRefused as refused:
            status = refusal_status(refused.refusal).SerializeToString()
            self.watches[place] = _end(watch, status)
            return
        down = watch.down
        if message.events or not watch.next:
            down = (*down, (watch.life, message.SerializeToString()))
        self.watches[place] = open.value()._replace(down=down)

    def _crash(self) -> None:
        super()._crash()
        gone = Status(code=UNAVAILABLE).SerializeToString()
        self.watches = [_end(one, gone) if one.life else one for one in self.watches]

    def _tidy(self) -> None:
        super()._tidy()
        alive = {one.pid for site in self.sites for one in site.workers if one.is_alive}
        kept = (one for one in self.watches if one.pid in alive)
        self.watches = sorted(kept, key=lambda one: one.pid)
        for watch in self.watches:
            if watch.life and not watch.is_woken:
                self._check_wait(watch)

    def _check_wait(self, watch: Watching) -> None:
        worker = self._find_worker(watch.site, watch.pid)
        assert worker is not None
        data = self._request(watch).SerializeToString()
        waits = SimpleNamespace(
            call=self._said(worker, Method.WATCH, data),
            watch=SimpleNamespace(claim=SimpleNamespace(round=worker.order.number)),
            sent=_sent(watch),
        )
        self.ghosts.hear("waits_for_changes", self.arena.server, waits)


def _sent(watch: Watching) -> int:
    """Return the revision of the latest answer to a watch."""
    if not watch.down:
        return watch.revision
    return int(keys_pb2.WatchKeysResponse.FromString(watch.down[-1][1]).header.revision)


def _end(watch: Watching, status: bytes) -> Watching:
    """Return a watch that the coordinator serves no more."""
    return watch._replace(
        life=0, next=0, noted=None, is_woken=False, down=(*watch.down, (0, status))
    )


class _Open:
    """The coordinator's side of a stream, while it does something."""

    def __init__(self, side: KeySide, value: Watching) -> None:
        self._value = value
        worker = side._find_worker(value.site, value.pid)
        assert worker is not None
        token = ((WORKER_TOKEN_KEY, worker.order.worker_token),)
        claim = tokens_of(value.life).claim(JOB_ID, token)
        watch = convert.to_watch(side._request(value), claim, CLOCK_MS)
        self.waits = KeyWaits()
        self.cursor = Cursor(watch, "host", self.waits)
        if value.next:
            self.cursor._next, self.cursor.wait.first = value.next, value.noted
            self.waits.watch(self.cursor.wait, side._own_state())
            if value.is_woken:
                self.cursor.wait.changed.set()

    def value(self) -> Watching:
        """Return the stream as it is now."""
        wait = self.cursor.wait
        return self._value._replace(
            next=self.cursor._next, noted=wait.first, is_woken=wait.changed.is_set()
        )
