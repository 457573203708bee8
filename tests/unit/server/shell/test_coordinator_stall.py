"""Times that a coordinator notes: when a lease begins, and what becomes of those of a stall.

A coordinator that was away tells its core so, before anything else that it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.memory import MemoryJournal
from rallypoint.server.shell.clock import JournalClock
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.server.shell.listeners import Listener, Listeners
from rallypoint.server.shell.stepper import Stepper, Turn
from support.core.fake_agents import identity, worker_exit
from support.core.shell import running

AWAY_MS = 9_000
HELLO = inputs.Hello(
    identity=identity("a", JobSpec(max_nodes=2)),
    connection=1,
    epoch=0,
    run=0,
    coordinator_id="",
    coordinator_durable=False,
    acknowledged=0,
    revision=0,
    held=None,
    ready=inputs.ReadyPort(0, 20_000),
)
SENDER = inputs.Sender(HELLO.identity.session, connection=1, epoch=1_000, sequence=0)


class SteppedClock(JournalClock):
    """A clock that moves only on request; held back like the real one."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_ms = 0

    def now_ms(self) -> int:
        return self.passed_ms - self._held_ms


class SlowJournal(MemoryJournal):
    """A journal that takes its time for the first batch."""

    def __init__(
        self, clock: SteppedClock, takes_ms: int, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__("0" * 32)
        self._clock = clock
        self._takes_ms = takes_ms
        self._meanwhile = meanwhile

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        await super().append(records, now_ms)
        if self._takes_ms:
            self._clock.passed_ms += self._takes_ms // 2
            self._meanwhile()
            self._clock.passed_ms += self._takes_ms // 2
        self._takes_ms = 0


class StallingListener(Listener):
    """A listener that stops the process in the middle of the first turn."""

    def __init__(self, clock: SteppedClock, takes_ms: int) -> None:
        self._clock = clock
        self._takes_ms = takes_ms

    def end_turn(self, state: State) -> None:
        self._clock.passed_ms += self._takes_ms
        self._takes_ms = 0


@pytest.mark.parametrize(
    ("journal_ms", "turn_ms", "suspected"),
    [(AWAY_MS, 0, True), (0, AWAY_MS, True), (100, 100, False)],
)
async def test_time_away_is_no_time_and_makes_the_path_suspect(
    journal_ms: int, turn_ms: int, suspected: bool
) -> None:
    """Whether the disk was slow or the process stopped in a turn: no lease has become shorter."""
    clock = SteppedClock()
    state = State("c1", 1_000, first_epoch=1_000)
    journal, stalling = SlowJournal(clock, journal_ms), StallingListener(clock, turn_ms)
    coordinator = Coordinator(state, journal, Listeners(state, stalling), clock, announces=False)
    async with running(coordinator):
        await coordinator.submit(HELLO)
        await coordinator.read(lambda state, now_ms: None)
        left_ms, names, is_suspected = await coordinator.read(
            lambda state, now_ms: (
                (state.next_deadline_ms() or 0) - now_ms,
                [node.name for node in state.nodes.values()],
                state.network.is_active(now_ms),
            )
        )

    assert [NodeName("a")] == names
    assert left_ms >= state.timing.lease_ms - 200
    assert suspected == is_suspected


async def test_exit_keeps_its_age_while_the_journal_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It arrives before the clock is held back, and has its turn afterwards."""
    clock = SteppedClock()
    exited = inputs.Exited(
        replace(SENDER, sequence=1), round=1, exits=(replace(worker_exit(), ago_ms=100),)
    )
    stepped: list[inputs.Input] = []

    def step(self: Stepper, input: inputs.Input, now_ms: int, turn: Turn) -> Refusal | None:
        stepped.append(input)
        return real(self, input, now_ms, turn)

    real = Stepper.step
    monkeypatch.setattr(Stepper, "step", step)
    state = State("c1", 1_000, first_epoch=1_000)
    journal = SlowJournal(clock, AWAY_MS, lambda: coordinator.submit_now(exited))
    coordinator = Coordinator(state, journal, Listeners(state), clock, announces=False)
    async with running(coordinator):
        await coordinator.submit(HELLO)
        await coordinator.read(lambda state, now_ms: None)
        now_ms = await coordinator.read(lambda state, now_ms: now_ms)

    assert inputs.Stalled(AWAY_MS) in stepped
    (found,) = [one for one in stepped if isinstance(one, inputs.Exited)]
    assert now_ms - AWAY_MS // 2 - 100 == found.exits[0].at_ms


@pytest.mark.parametrize(
    ("heard_ms", "taken_ms"),
    [
        pytest.param(100, 1_000, id="its turn comes 900 ms later"),
        pytest.param(60_000, 60_000, id="it came while the clock still ran ahead"),
    ],
)
async def test_lease_runs_from_when_the_heartbeat_came(heard_ms: int, taken_ms: int) -> None:
    """By the clock as it is held back. A heartbeat starts no turn."""
    clock = SteppedClock()
    state = State("c1", 1_000, first_epoch=1_000)
    journal = MemoryJournal("c1")
    coordinator = Coordinator(state, journal, Listeners(state), clock, announces=False)
    async with running(coordinator):
        await coordinator.submit(HELLO)
        await coordinator.read(lambda state, now_ms: None)
        clock.passed_ms = heard_ms
        coordinator.hear(inputs.Heartbeat(SENDER))
        clock.passed_ms = taken_ms
        ends_ms = await coordinator.read(
            lambda state, now_ms: state.deadlines.get((DeadlineKind.LEASE, SENDER.session))
        )

    heard_at_ms = min(heard_ms, clock.now_ms())
    assert ends_ms == heard_at_ms + state.timing.lease_ms
    assert (heard_at_ms < heard_ms) == (heard_ms > 1_000)
