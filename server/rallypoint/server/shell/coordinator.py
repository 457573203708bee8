"""The stateful shell around the core: collects inputs, steps the core, journals, then acts.

One task owns the state and works in turns. A turn steps everything that has arrived, in order, then
every deadline that has expired. It appends the resulting records to the journal in one batch. Only
then does it carry out the effects and answer readers, so no decision is visible before it is in the
journal. If the append fails, the effects are dropped and the coordinator ends; workers keep running
without it.

Reads never hold up decisions: each turn answers them for a limited time, the next one continues.

If a turn starts late, because the process was stopped or the disk was slow, the clock is held back
by the delay. A coordinator that stalled does not take its own absence for lost nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from rallypoint.base.log import get_logger, new_incident
from rallypoint.server.core.memory.replay import JournalRecord, memory_of, snapshot
from rallypoint.server.core.memory.weights import EVENT_BYTES, NODE_BYTES, weight_of
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.compaction import Compaction
from rallypoint.server.journal.interface import Journal
from rallypoint.server.shell.announcements import Announcements
from rallypoint.server.shell.clock import JUMP_MS, JournalClock, wall_ms
from rallypoint.server.shell.inbox import INBOX_MAX, Inbox, Item, Query, dismiss
from rallypoint.server.shell.listeners import Listeners
from rallypoint.server.shell.stepper import Stepper, Turn

log = get_logger()

TURN_MS_MAX = 20
"""After this a turn takes effect, and the rest of its inputs begins the next one. So a Stop need
not wait for a thousand failures to be classified, at half a millisecond each. Readers have as long
again, at the end of the turn."""
TURN_BYTES_MAX = 1_048_576
"""The same for what its inputs add to the journal: encoding and syncing it holds up all jobs."""
LATE_MS = 200
"""A turn that starts later than planned by more than this counts as a stall."""
INLINE_BYTES_MAX = 4_194_304
"""Memory of a state whose snapshot is made on the event loop. A larger one is made in a thread, so
that heartbeats are answered and an owner's lease is renewed meanwhile."""
PULSE_S = 0.25
"""Longest sleep while nodes are connected or may reconnect. It is a small part of the shortest
lease, and the precision with which a stall is measured."""

T = TypeVar("T")


class InputRefused(Exception):
    """The core refused a request."""

    def __init__(self, refusal: Refusal) -> None:
        """Keep the core's refusal."""
        super().__init__(refusal.kind.value)
        self.refusal = refusal


class CoordinatorEnded(Exception):
    """The loop has ended: nothing that is submitted has an effect any more."""


class Coordinator:
    """The task that owns the state."""

    def __init__(
        self,
        state: State,
        journal: Journal,
        listeners: Listeners,
        clock: JournalClock,
        *,
        announces: bool,
        is_shared: bool = False,
        may_log: Callable[[inputs.Input], bool] = lambda input: True,
        may_open: Callable[[inputs.Input], bool] = lambda input: True,
        stood_ms: int = 0,
    ) -> None:
        """Take ownership of `state`; `run` does the work.

        Args:
            state: what the coordinator knows at its start.
            journal: where records go.
            listeners: hear the effects.
            clock: journal time.
            announces: whether to log what happens to jobs.
            is_shared: whether another coordinator may own this part of the jobs next.
            may_log: whether there is room in the log for a line about a refused input.
            may_open: whether there is room in the log for the run that a Hello opens.
            stood_ms: how long journal time stood since the state was made.
        """
        self._state = state
        self._stepper = Stepper(state)
        self._journal = journal
        self._listeners = listeners
        self._clock = clock
        self._announcements = Announcements(state, may_open) if announces else None
        self._may_log = may_log
        self._heard: dict[SessionId, tuple[inputs.Heartbeat, int]] = {}
        """Heartbeats since the last turn: the newest of each session, and when it arrived."""
        self._inbox = Inbox()
        self._rest: list[Item] = []
        """Inputs that the last turn had no time for, oldest first."""
        self._rest_since_ms = 0
        """When the first turn ended that left a rest, since the last one that left none."""
        self._unanswered: deque[Query] = deque()
        """Reads that no turn had time for yet, oldest first."""
        self._readers = asyncio.Semaphore(INBOX_MAX)
        """Bounds the reads that wait."""
        self._reading_ns = 0
        """Processor time that the last turn spent on readers."""
        self._stalled_ms = stood_ms
        """Length of stalls that the core does not know about yet."""
        self._held_ms = 0
        """By how much the clock was held back in all."""
        self._compaction = Compaction(journal.length, journal.size, is_shared=is_shared)
        self._kept_ms = clock.now_ms()
        """Journal time of the latest batch."""
        self._has_ended = False

    async def submit(self, input: inputs.Input) -> None:
        """Add an input for the next turn. Waits while the inbox is full.

        Raises:
            CoordinatorEnded: when no turn will come.
        """
        await self._put(_date_exits(input, self._clock.now_ms() + self._held_ms))

    def submit_now(self, input: inputs.Input) -> None:
        """Add an input for the next turn, if there is room.

        Raises:
            InboxFull: when there is none.
            CoordinatorEnded: when no turn will come.
        """
        if self._has_ended:
            raise CoordinatorEnded
        self._inbox.put_now(_date_exits(input, self._clock.now_ms() + self._held_ms))

    def hear(self, beat: inputs.Heartbeat) -> bool:
        """Note a heartbeat. It starts no turn; the next turn applies it before it checks leases.

        Returns: Whether it renews a lease. If not, it must not be acknowledged: while the loss of a
            node is being written, its fence counts already, from before this heartbeat.

        Raises:
            CoordinatorEnded: when no turn will come; the heartbeat must not be acknowledged.
        """
        if self._has_ended:
            raise CoordinatorEnded
        if not self._state.is_current(beat.sender.session, beat.sender.connection):
            return False
        self._heard[beat.sender.session] = beat, self._clock.now_ms()
        return True

    def now_ms(self) -> int:
        """Return journal time."""
        return self._clock.now_ms()

    async def read(self, answer: Callable[[State, int], T]) -> T:
        """Return `answer(state, now_ms)`, computed when everything it can see is in the journal.

        Raises:
            LookupError: when `answer` does.
            CoordinatorEnded: when no turn will come.
        """
        async with self._readers:
            return await self._ask(None, answer)

    async def ask(self, request: inputs.Request, answer: Callable[[State, int], T]) -> T:
        """Submit a request; return `answer(state, now_ms)` when its changes are in the journal.

        Raises:
            InputRefused: when the core refused the request. Nothing changed.
            LookupError: when `answer` does.
            CoordinatorEnded: when no turn will come, or the change could not be journalled.
        """
        return await self._ask(request, answer)

    async def _ask(self, request: inputs.Request | None, answer: Callable[[State, int], T]) -> T:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        await self._put(Query(request, answer, future))
        return await future  # type: ignore[return-value]  # the future carries answer's result

    async def _put(self, item: Item) -> None:
        if not self._has_ended:
            await self._inbox.put(item)
        if self._has_ended:
            self._inbox.dismiss(CoordinatorEnded())  # lets the next one in, if others wait for room
            raise CoordinatorEnded

    async def run(self) -> None:
        """Take turns until cancelled. However it ends, everyone who waits learns it at once.

        Raises:
            JournalFailed: when a batch could not be appended.
        """
        arrived: list[Item] = []
        try:
            while True:
                arrived = await self._wait()
                began_ms = self._clock.now_ms()
                await self._turn(arrived, began_ms)
                # The process may also have been stopped in the middle of the turn. While it answers
                # readers it is busy, not stopped.
                self._notice_stall(began_ms + self._reading_ns // 1_000_000)
                self._inbox.note_turn()
                arrived = []  # nothing of a turn is kept while the next one is awaited
        finally:
            self._has_ended = True
            dismiss((*arrived, *self._unanswered), CoordinatorEnded())
            self._inbox.dismiss(CoordinatorEnded())
            self._listeners.end()

    async def _wait(self) -> list[Item]:
        """Return what has arrived; nothing when a deadline is due."""
        planned_ms: int | None = self._clock.now_ms()
        if self._rest or self._unanswered:
            await asyncio.sleep(0)  # so that the effects of the last turn are sent
            arrived = list(self._rest)
            self._inbox.add_to(arrived)
        else:
            planned_ms, arrived = await self._sleep()
        if planned_ms is not None:
            self._notice_stall(planned_ms)
        if self._stalled_ms:
            # It goes first, because some inputs may be streams that agents gave up during the
            # stall.
            arrived.insert(0, inputs.Stalled(self._stalled_ms))
            self._stalled_ms = 0
        return arrived

    async def _sleep(self) -> tuple[int | None, list[Item]]:
        """Wait for an input or a deadline; return when it was due, if at all, and the input."""
        is_watching = bool(self._state.nodes) or self._state.window_until_ms > 0
        sleep_s = PULSE_S if is_watching else None
        dues_ms = (self._state.next_deadline_ms(), self._keep_time_ms())
        due_ms = min((at_ms for at_ms in dues_ms if at_ms is not None), default=None)
        if due_ms is not None:
            until_due_s = max(0.0, (due_ms - self._clock.now_ms()) / 1000)
            sleep_s = until_due_s if sleep_s is None else min(sleep_s, until_due_s)
        planned_ms = None if sleep_s is None else self._clock.now_ms() + int(sleep_s * 1000)
        return planned_ms, await self._inbox.get(sleep_s)

    def _notice_stall(self, planned_ms: int) -> None:
        late_ms = self._clock.now_ms() - planned_ms
        if late_ms > LATE_MS:
            self._hold_back(late_ms)
            log.warning("coordinator_stalled", late_ms=late_ms)

    def _hold_back(self, stalled_ms: int) -> None:
        self._clock.hold_back(stalled_ms)
        self._held_ms += stalled_ms
        self._stalled_ms += stalled_ms

    async def _turn(self, arrived: Sequence[Item], now_ms: int) -> None:
        turn = Turn()
        self._measure(now_ms, turn)
        heard, self._heard = self._heard, {}
        for beat, heard_ms in heard.values():
            # A lease runs from the arrival of the heartbeat. After a stall that can be later than
            # `now_ms`, because the clock was held back.
            self._step(beat, min(heard_ms, now_ms), turn)
        handled = self._step_in_time(arrived, now_ms, turn)
        if self._keep_rest(arrived[handled:], now_ms):
            began_ms = self._clock.now_ms()
            self._stepper.expire(
                now_ms, turn, lambda: self._clock.now_ms() - began_ms >= TURN_MS_MAX
            )
        self._stepper.close(turn)
        if turn.records:
            await self._append(turn.records, now_ms)
        if turn.effects or turn.changed:
            broken = self._listeners.carry_out(turn.effects, turn.changed, self._state)
            self._rest[:0] = [one for one in broken if self._is_open(one.job_id)]
        if self._announcements is not None:
            with _containing():
                self._announcements.write(turn.effects)
        self._answer_all([item for item in arrived[:handled] if isinstance(item, Query)], now_ms)

    def _measure(self, now_ms: int, turn: Turn) -> None:
        """Compare the clocks, and keep the time that has passed if that is due."""
        unix_ms, keep_ms = wall_ms(), self._keep_time_ms()
        jumped_ms = self._clock.jumped_ms(unix_ms)
        if abs(jumped_ms) > JUMP_MS:
            log.warning("wall_clock_jumped", by_s=jumped_ms // 1000, why="no wait depends on it")
        is_due = keep_ms is not None and now_ms >= keep_ms
        self._stepper.measure(now_ms, unix_ms, turn, keeps_time=is_due)

    def _keep_time_ms(self) -> int | None:
        """Return when the journal has to keep the time that has passed; None: never."""
        after_ms = self._state.keep_time_ms() if self._journal.is_durable else None
        return None if after_ms is None else self._kept_ms + after_ms

    def _answer_all(self, queries: Sequence[Query], now_ms: int) -> None:
        """Answer all requests, whose answers this turn has, and readers until their time is over.

        The next turn continues with the readers: each answer may be large.
        """
        self._reading_ns = 0
        if not queries and not self._unanswered:
            return
        began_ns = time.thread_time_ns()
        for query in queries:
            if query.request is None:
                self._unanswered.append(query)
            else:
                self._answer(query, now_ms)
        began_ms = self._clock.now_ms()
        while self._unanswered:
            self._answer(self._unanswered.popleft(), now_ms)
            if self._clock.now_ms() - began_ms >= TURN_MS_MAX:
                break
        self._reading_ns = time.thread_time_ns() - began_ns

    def _step_in_time(self, arrived: Sequence[Item], now_ms: int, turn: Turn) -> int:
        """Step inputs until a turn has no time or no room for more; return how many."""
        handled = weight = 0
        for item in arrived:
            handled, known = handled + 1, len(turn.records)
            if not isinstance(item, Query):
                self._step(item, now_ms, turn)
            elif item.request is not None:
                item.refusal = self._step(item.request, now_ms, turn)
            weight += sum(map(weight_of, turn.records[known:]))
            if self._clock.now_ms() - now_ms >= TURN_MS_MAX or weight >= TURN_BYTES_MAX:
                break
        return handled

    def _keep_rest(self, rest: Sequence[Item], now_ms: int) -> bool:
        """Keep what this turn had no time for; return whether deadlines may expire.

        What has arrived counts before a deadline. But a rest that never ends stops no clock.
        """
        if not self._rest:
            self._rest_since_ms = now_ms
        self._rest = list(rest)
        return not self._rest or now_ms - self._rest_since_ms >= LATE_MS

    async def _append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        await self._journal.append(records, now_ms)
        self._kept_ms = now_ms
        if self._compaction.is_due(self._journal.length, self._journal.size):
            await self._compact(now_ms)
        waited_ms = self._clock.now_ms() - now_ms
        if waited_ms > LATE_MS:
            self._hold_back(waited_ms)
            log.warning("journal_stalled", waited_ms=waited_ms)

    async def _compact(self, now_ms: int) -> None:
        """Replace the journal by a snapshot; if a bug prevents one, let it grow for a while.

        The values of a snapshot never change, so the store may write it after this turn.
        """
        try:
            if _weigh(self._state) <= INLINE_BYTES_MAX:
                records = _take_snapshot(self._state)
            else:  # nothing changes the state before the turn continues
                records = await asyncio.to_thread(_take_snapshot, self._state)
        except Exception as error:  # a bug in one job must not end the others
            log.error("snapshot_failed", incident=new_incident(), exc_info=error)
        else:
            await self._journal.compact(records, now_ms)
        self._compaction.note(self._journal.length, self._journal.size)

    def _step(self, input: inputs.Input, now_ms: int, turn: Turn) -> Refusal | None:
        known = len(turn.effects)
        refusal = self._stepper.step(_move_exits(input, -self._held_ms), now_ms, turn)
        if self._announcements is not None:
            with _containing():
                self._announcements.note(input, turn.effects[known:])
        if refusal is not None and refusal.kind is not RefusalKind.INTERNAL:
            with _containing():
                _log_refusal(self._state, input, refusal, self._may_log)
        return refusal

    def _is_open(self, job_id: JobId) -> bool:
        job = self._state.jobs.get(job_id)
        return job is not None and job.phase is not Phase.CLOSED

    def _answer(self, query: Query, now_ms: int) -> None:
        if query.future.done():
            return  # its caller has gone
        if query.refusal is not None:
            query.future.set_exception(InputRefused(query.refusal))
            return
        try:
            query.future.set_result(query.answer(self._state, now_ms))
        except Exception as error:  # noqa: BLE001  # the caller gets it
            query.future.set_exception(error)


def _weigh(state: State) -> int:
    """Return how much memory a snapshot takes, about."""
    held = state.holding.keys + state.holding.barriers
    return held + len(state.nodes) * NODE_BYTES + state.events.count * EVENT_BYTES


def _take_snapshot(state: State) -> tuple[JournalRecord, ...]:
    return snapshot(memory_of(state))


@contextmanager
def _containing() -> Iterator[None]:
    """Log a bug that strikes while the log is written; what has happened stands."""
    try:
        yield
    except Exception as error:  # it ends nothing
        log.error("note_failed", incident=new_incident(), exc_info=error)


def _date_exits(input: inputs.Input, now_ms: int) -> inputs.Input:
    """Return an input that arrives now, with the times of the exits that it reports.

    It may wait for its turn longer than another one, so that ages would not be true by then.

    Args:
        input: the input.
        now_ms: journal time as if the clock was never held back.
    """
    return _with_exits(input, lambda exit: exit.dated(now_ms))


def _move_exits(input: inputs.Input, by_ms: int) -> inputs.Input:
    """Return an input with later times of the exits that it reports."""

    def move(exit: WorkerExit) -> WorkerExit:
        return exit if exit.at_ms is None else replace(exit, at_ms=exit.at_ms + by_ms)

    return _with_exits(input, move) if by_ms else input


def _with_exits(input: inputs.Input, change: Callable[[WorkerExit], WorkerExit]) -> inputs.Input:
    match input:
        case inputs.Exited(exits=exits) | inputs.Recorded(exits=exits):
            return replace(input, exits=tuple(map(change, exits)))
        case inputs.Hello(held=held) if held is not None and held.exits:
            return replace(input, held=replace(held, exits=tuple(map(change, held.exits))))
        case _:
            return input


def _log_refusal(
    state: State, input: inputs.Input, refusal: Refusal, may_log: Callable[[inputs.Input], bool]
) -> None:
    """Log a refused input with its node and the fields that it disagrees about."""
    facts = dict(refusal.facts)
    facts.pop("session", None)  # only its agent may know the id of a session
    if isinstance(input, inputs.Hello):
        facts["node"] = input.identity.name
    elif not isinstance(input, inputs.Senderless):
        node = state.nodes.get(input.sender.session)
        facts |= {} if node is None else {"node": node.name}
    if refusal.differences:
        facts["fields"] = ",".join(field for field, _, _ in refusal.differences)
    # After a broken connection, late messages of the old one are normal. Workers learn of a refusal
    # themselves, and one that is wrong may be refused for ever.
    is_quiet = refusal.kind in _LATE or isinstance(input, inputs.Arrive | inputs.WriteKeys)
    if is_quiet or may_log(input):
        (log.debug if is_quiet else log.info)(
            "input_refused", input=type(input).__name__, why=refusal.kind.value, **facts
        )


_LATE = frozenset({RefusalKind.STALE_CONNECTION, RefusalKind.UNKNOWN_SESSION})
