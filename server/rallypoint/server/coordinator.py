"""The one stateful shell: takes what has happened, lets the core decide, journals, then acts.

One task owns the state. A turn takes everything that has arrived, steps it in order, then steps
what has expired; appends the resulting records in one batch; and only when that has returned
carries out the effects and answers readers. So nothing is visible before it is durable, for reads
too. A failed append withholds the turn's effects and ends the coordinator: what was decided and not
written must not be acted on, and the agents' workers do not need it to run on.

A turn that comes late (the process was stopped, the disk was slow) holds the clock back by its
lateness, so that a stalled coordinator declares nobody dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rallypoint.server.clock import JournalClock
from rallypoint.server.core import inputs
from rallypoint.server.core.effects import Effect, JobChanged, Refusal, RefusalKind
from rallypoint.server.core.invariants import BrokenInvariant, check_job, check_touched
from rallypoint.server.core.model import JobId, SessionId
from rallypoint.server.core.replay import JournalRecord, memory_of, snapshot
from rallypoint.server.core.state import State, apply
from rallypoint.server.core.step import Transition, step
from rallypoint.server.journal.interface import COMPACT_AFTER, Journal
from rallypoint.wire.log import get_logger

log = get_logger()

INBOX_MAX = 4_096
"""Inputs that may wait; whoever brings more waits himself, which slows his stream down."""
TURN_MAX = 1_024
"""Inputs of one turn: bounds how long readers and deadlines wait."""
LATE_MS = 200
"""A turn later than this was stalled, not merely busy."""
PULSE_S = 0.25
"""Longest sleep while there are sessions, or may be: a stall is noticed to within this, which is a
small part of the shortest lease."""

T = TypeVar("T")


class Outlet(Protocol):
    """Whoever carries effects to the outside; never blocks."""

    def carry_out(
        self, effects: Sequence[Effect], changed: Collection[JobId], state: State, now_ms: int
    ) -> None:
        """Carry out the effects of one durable turn, in order; readers of `changed` look again."""


class InputRefused(Exception):
    """The core refused what was asked."""

    def __init__(self, refusal: Refusal) -> None:
        """Keep why."""
        super().__init__(refusal.kind.value)
        self.refusal = refusal


@dataclass(slots=True)
class _Query:
    """A read or a request, answered after the append of the turn that took it."""

    request: inputs.Request | None
    """What is asked for; None for a read."""
    answer: Callable[[State, int], object]
    future: asyncio.Future[object]
    refusal: Refusal | None = None
    """Why the request changed nothing."""


class Coordinator:
    """The owner of the state."""

    def __init__(
        self,
        state: State,
        journal: Journal,
        outlet: Outlet,
        clock: JournalClock,
        *,
        announces: bool,
    ) -> None:
        """Take ownership of `state`; `run` does the work, and logs if it `announces`."""
        self._state = state
        self._journal = journal
        self._outlet = outlet
        self._clock = clock
        self._announces = announces
        self._heard: dict[SessionId, tuple[inputs.Heartbeat, int]] = {}
        """Heartbeats since the last turn: the newest of each session, and when it came."""
        self._inbox: asyncio.Queue[inputs.Input | _Query] = asyncio.Queue(INBOX_MAX)
        self._stalled_ms = 0
        """How long the coordinator was away since it last told its core."""

    async def submit(self, said: inputs.Input) -> None:
        """Bring an input; waits while the inbox is full."""
        await self._inbox.put(said)

    def hear(self, said: inputs.Heartbeat) -> None:
        """Take a heartbeat. It wakes nobody: no lease is judged before the next turn takes it."""
        self._heard[said.sender.session] = said, self._clock.now_ms()

    async def read(self, answer: Callable[[State, int], T]) -> T:
        """Return `answer(state, now_ms)`, computed when all that it sees is durable.

        Raises:
            LookupError: whatever `answer` raises of that kind.
        """
        return await self._ask(None, answer)

    async def ask(self, said: inputs.Request, answer: Callable[[State, int], T]) -> T:
        """Bring a request; return `answer(state, now_ms)` when what it changed is durable.

        Raises:
            InputRefused: when the core refused it; then it has changed nothing.
            LookupError: whatever `answer` raises of that kind.
        """
        return await self._ask(said, answer)

    async def _ask(self, request: inputs.Request | None, answer: Callable[[State, int], T]) -> T:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        await self._inbox.put(_Query(request, answer, future))
        return await future  # type: ignore[return-value]  # the future carries answer's result

    async def run(self) -> None:
        """Take turns until cancelled.

        Raises:
            JournalFailed: when a batch could not be made durable.
        """
        while True:
            arrived = await self._wait()
            began_ms = self._clock.now_ms()
            await self._turn(arrived)
            # Stopped in the middle of a turn, it was away just as long.
            self._notice_stall(began_ms)

    async def _wait(self) -> list[inputs.Input | _Query]:
        """Return what has arrived, or nothing when something is due."""
        is_watching = bool(self._state.nodes) or self._state.window_until_ms > 0
        sleep_s = PULSE_S if is_watching else None
        due_ms = self._state.next_deadline_ms()
        if due_ms is not None:
            until_due_s = max(0.0, (due_ms - self._clock.now_ms()) / 1000)
            sleep_s = until_due_s if sleep_s is None else min(sleep_s, until_due_s)
        planned_ms = None if sleep_s is None else self._clock.now_ms() + int(sleep_s * 1000)
        arrived: list[inputs.Input | _Query] = []
        try:
            async with asyncio.timeout(sleep_s):
                arrived.append(await self._inbox.get())
        except TimeoutError:
            pass
        while len(arrived) < TURN_MAX and not self._inbox.empty():
            arrived.append(self._inbox.get_nowait())
        if planned_ms is not None:
            self._notice_stall(planned_ms)
        if self._stalled_ms:
            # Before all else: streams that its agents gave up meanwhile are about to be found.
            arrived.insert(0, inputs.Stalled(self._stalled_ms))
            self._stalled_ms = 0
        return arrived

    def _notice_stall(self, planned_ms: int) -> None:
        late_ms = self._clock.now_ms() - planned_ms
        if late_ms > LATE_MS:
            self._clock.hold_back(late_ms)
            self._stalled_ms += late_ms
            log.warning("coordinator_stalled", late_ms=late_ms)

    async def _turn(self, arrived: Sequence[inputs.Input | _Query]) -> None:
        state, now_ms = self._state, self._clock.now_ms()
        records: list[JournalRecord] = []
        effects: list[Effect] = []
        changed: dict[JobId, None] = {}
        queries: list[_Query] = []
        heard, self._heard = self._heard, {}
        for beat, heard_ms in heard.values():
            # A lease runs from when the beat came, not from its turn up to a pulse later; but after
            # a stall the clock has been held back since.
            self._step(beat, min(heard_ms, now_ms), records, effects, changed)
        for said in arrived:
            if isinstance(said, _Query):
                queries.append(said)
                if said.request is not None:
                    said.refusal = self._step(said.request, now_ms, records, effects, changed)
            else:
                self._step(said, now_ms, records, effects, changed)
        while (due_ms := state.next_deadline_ms()) is not None and due_ms <= now_ms:
            self._step(inputs.TimePassed(), now_ms, records, effects, changed)
        if records:
            await self._append(records, now_ms)
        if effects or changed:
            self._outlet.carry_out(effects, changed, state, now_ms)
        if self._announces:
            _announce(effects)
        for query in queries:
            self._answer(query, now_ms)

    async def _append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        await self._journal.append(records, now_ms)
        if self._journal.length > COMPACT_AFTER:
            await self._journal.compact(snapshot(memory_of(self._state)), now_ms)
        waited_ms = self._clock.now_ms() - now_ms
        if waited_ms > LATE_MS:
            self._clock.hold_back(waited_ms)
            self._stalled_ms += waited_ms
            log.warning("journal_was_slow", waited_ms=waited_ms)

    def _step(
        self,
        said: inputs.Input,
        now_ms: int,
        records: list[JournalRecord],
        effects: list[Effect],
        changed: dict[JobId, None],
    ) -> Refusal | None:
        transition = step(self._state, said, now_ms)
        apply(self._state, transition.delta)
        records.extend(transition.records)
        effects.extend(transition.effects)
        changed.update(dict.fromkeys(transition.jobs))
        if transition.refusal is not None:
            # Old news is part of every broken connection; what is new about it is nothing.
            is_old_news = transition.refusal.kind in _OLD_NEWS
            (log.debug if is_old_news else log.info)(
                "input_refused",
                input=type(said).__name__,
                why=transition.refusal.kind.value,
                **dict(transition.refusal.facts),
            )
            return transition.refusal
        try:
            self._check(transition)
        except BrokenInvariant as broken:
            log.error("invariant_broken", job_id=broken.job_id, report=broken.text)
            broken_job = inputs.JobBroken(broken.job_id, broken.text)
            self._step(broken_job, now_ms, records, effects, changed)
        return None

    def _check(self, transition: Transition) -> None:
        check_touched(self._state, transition.delta)
        for effect in transition.effects:
            if isinstance(effect, JobChanged) and effect.reason in _CHECKED_WHOLE:
                check_job(self._state, effect.job_id)

    def _answer(self, query: _Query, now_ms: int) -> None:
        if query.future.cancelled():
            return
        if query.refusal is not None:
            query.future.set_exception(InputRefused(query.refusal))
            return
        try:
            query.future.set_result(query.answer(self._state, now_ms))
        except Exception as error:  # noqa: BLE001  # a reader's bug must not end the coordinator
            query.future.set_exception(error)


def _announce(effects: Sequence[Effect]) -> None:
    for effect in effects:
        if isinstance(effect, JobChanged):
            log.info(effect.reason, job_id=effect.job_id, **dict(effect.facts))


_OLD_NEWS = frozenset({RefusalKind.STALE_CONNECTION, RefusalKind.UNKNOWN_SESSION})
_CHECKED_WHOLE = frozenset({"round_sealed", "round_adopted", "round_stopped"})
"""Events after which everything about a job is checked, not only what the step touched."""
