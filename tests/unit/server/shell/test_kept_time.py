"""The journal keeps the time that passes while something waits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from rallypoint.server.core.memory.replay import JournalRecord, replay
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state.state import State
from rallypoint.server.shell import coordinator as shell
from rallypoint.server.shell.clock import JournalClock
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.server.shell.listeners import Listeners
from support.core.shell import running
from support.journal.recording import RecordingJournal

READS = 40
"""Of the clock, within which each part of several turns lies."""
STALL_MS = 2_000
SPEC = JobSpec(min_nodes=2, max_nodes=2)
WAITING = inputs.CreateJob(JobId("job"), SPEC, request_id="r")


class SteppedClock(JournalClock):
    """A clock that only the test moves."""

    ms = 0

    def now_ms(self) -> int:
        return self.ms

    def hold_back(self, stalled_ms: int) -> None:
        pass


class StallingClock(SteppedClock):
    """Jumps at one reading, as if the process had been suspended just before it."""

    def __init__(self, reads: int) -> None:
        super().__init__()
        self.reads = reads

    def now_ms(self) -> int:
        self.reads -= 1
        if not self.reads:
            self.ms += STALL_MS
        return self.ms

    def hold_back(self, stalled_ms: int) -> None:
        self.ms -= stalled_ms


class KeptJournal(RecordingJournal):
    """Says that it outlives the process, and notes the time of each batch."""

    is_durable = True

    def __init__(self) -> None:
        super().__init__("c" * 32)
        self.batches_ms: list[int] = []

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        self.batches_ms.append(now_ms)
        await super().append(records, now_ms)


async def live(
    monkeypatch: pytest.MonkeyPatch,
    *inputs_: inputs.Request,
    seconds: int,
    jump_ms: int = 0,
    clock: SteppedClock | None = None,
) -> tuple[KeptJournal, State]:
    """Take a turn each quarter of a second; the wall clock may be set in the middle."""
    clock = SteppedClock() if clock is None else clock
    journal, state, unix_ms = KeptJournal(), State("c", 1), 1_000_000
    monkeypatch.setattr(shell, "wall_ms", lambda: unix_ms + clock.ms)
    coordinator = Coordinator(state, journal, Listeners(state), clock, announces=False)
    async with running(coordinator):
        for one in inputs_:
            await coordinator.ask(one, lambda state, now_ms: None)
        for quarter in range(1, 4 * seconds + 1):
            clock.ms += 250
            if quarter == 2 * seconds:
                unix_ms += jump_ms
            await coordinator.read(lambda state, now_ms: None)
    return journal, state


async def test_time_of_a_wait_is_kept_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that is killed loses a second of it, and remembers what it would anyway."""
    journal, state = await live(monkeypatch, WAITING, seconds=5)

    assert [1_000, 2_000, 3_000, 4_000, 5_000] == journal.batches_ms[-5:]
    records = (await journal.load()).records
    assert replay(records).clocks == state.clocks
    assert 1 == len(state.clocks.distances_ms)


async def test_nothing_is_written_where_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle coordinator leaves its disk alone."""
    journal, _ = await live(monkeypatch, seconds=5)

    assert [250] == journal.batches_ms  # the clocks were compared for the first time


async def test_wall_clock_that_is_set_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """And moves no journal time."""
    with capture_logs() as lines:
        journal, _ = await live(monkeypatch, WAITING, seconds=2, jump_ms=3_600_000)

    assert [1_000, 2_000] == journal.batches_ms[-2:]
    jumps = [line["by_s"] for line in lines if line["event"] == "wall_clock_jumped"]
    assert len(jumps) == 1 and 3_590 < jumps[0] < 3_610


async def test_batch_is_never_before_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever in a turn the process is suspended: verify would refuse such a journal."""
    jobs = [inputs.CreateJob(JobId(name), SPEC, request_id=name) for name in "abcd"]
    for reads in range(1, READS):
        clock = StallingClock(reads)
        journal, _ = await live(monkeypatch, *jobs, seconds=1, clock=clock)

        assert clock.reads < 0
        assert sorted(journal.batches_ms) == journal.batches_ms, f"stalled at reading {reads}"
