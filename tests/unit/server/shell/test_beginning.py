"""How a coordinator begins with a journal: epoch, time, window, tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from rallypoint.client.aio import AsyncClient
from rallypoint.server.access.tokens import ResumeTokens, WorkerTokens
from rallypoint.server.core.memory.replay import JournalRecord, replay
from rallypoint.server.core.messages.records import ClockMeasured, EpochRaised, EventsLogged
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.journal.interface import Journal, JournalUnreadable, Loaded
from rallypoint.server.serve import Settings, serving
from rallypoint.server.shell.beginning import begin
from rallypoint.v1 import job_pb2
from support.core.coordinator import Bench
from support.core.fake_agents import JOB
from support.journal.recording import RecordingJournal

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
TIMING = Timing()


class Remembered(RecordingJournal):
    """A journal that was written some time ago, by the wall clock."""

    def __init__(self, *, epoch: int = 1_000, now_ms: int = 50_000, ago_ms: int = 0) -> None:
        super().__init__("c" * 32)
        self.records = [EpochRaised(epoch)]
        self._at = now_ms, time.time_ns() // 1_000_000 - ago_ms

        self.appended_ms: list[int] = []

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        self.appended_ms.append(now_ms)
        await super().append(records, now_ms)

    async def load(self) -> Loaded:
        return replace(await super().load(), now_ms=self._at[0], unix_ms=self._at[1])


async def test_epoch_is_higher_than_any_before() -> None:
    """Also if the wall clock was set back since; it is the first record of the new life."""
    far = time.time_ns() // 1_000_000 + DAY_MS
    for before in (1_000, far):
        journal = Remembered(epoch=before)

        begun = await begin(journal, TIMING, listens=True)

        records = (await RecordingJournal.load(journal)).records
        raised = EpochRaised(begun.state.epoch, True, window_until_ms=0, at_ms=50_001)
        assert raised in records[1:]
        assert begun.state.epoch > before
        assert begun.state.epoch >= time.time_ns() // 1_000_000 - 60_000
        assert before == begun.state.since_epoch


@pytest.mark.parametrize("ago_ms", [0, 7_000, HOUR_MS, -DAY_MS])
async def test_journal_time_continues(ago_ms: int) -> None:
    """It stands while no coordinator is there, whatever the wall clock says; a jump is logged."""
    journal = Remembered(ago_ms=ago_ms)
    with capture_logs() as lines:
        begun = await begin(journal, TIMING, listens=True)

    assert [50_001] == journal.appended_ms
    assert 50_001 <= begun.clock.now_ms() < 55_000
    events = {line["event"] for line in lines} & {"journal_time_resumed", "wall_clock_jumped"}
    expected = {HOUR_MS: {"journal_time_resumed"}, -DAY_MS: {"wall_clock_jumped"}}
    assert events == expected.get(ago_ms, set())


@pytest.mark.parametrize("ago_ms", [7_000, HOUR_MS, -DAY_MS])
async def test_known_failures_became_older_meanwhile(ago_ms: int) -> None:
    """The agents count their ages on; a clock that was set back makes nothing younger."""
    bench = Bench(JobSpec(min_nodes=1, max_nodes=1, settle_time_ms=0), durable=True)
    bench.run_round("a")[0].fail()
    journal = Remembered(now_ms=bench.now_ms, ago_ms=ago_ms)
    journal.records = bench.records

    begun = await begin(journal, TIMING, listens=True)

    (before,), (after,) = (
        state.jobs[JobId(JOB)].round.failures  # type: ignore[union-attr]  # it stops
        for state in (bench.state, begun.state)
    )
    older_ms = (before.exit.at_ms or 0) - (after.exit.at_ms or 0)
    assert max(0, ago_ms) <= older_ms < max(0, ago_ms) + 55_000


@pytest.mark.parametrize("listens", [False, True])
async def test_only_a_new_journal_begins_with_a_window(*, listens: bool) -> None:
    """One that remembers seals at once; so does one that shares its process with its agent."""
    new = await begin(RecordingJournal("c" * 32), TIMING, listens=listens)
    known = await begin(Remembered(), TIMING, listens=listens)

    assert (listens * TIMING.window_ms, 0) == (
        new.state.window_until_ms,
        known.state.window_until_ms,
    )
    assert listens == new.state.has_unknown_past


async def test_times_of_day_survive_a_start() -> None:
    """A stall of an hour, before which things keep their time; so does what came after it."""
    journal = Remembered(now_ms=50_000, ago_ms=0)
    unix_ms = journal._at[1] - 50_000
    before = [ClockMeasured(0, unix_ms - HOUR_MS), ClockMeasured(40_000, unix_ms + 40_000)]
    journal.records += before

    begun = await begin(journal, TIMING, listens=True)

    clocks = begun.state.clocks
    assert [unix_ms - HOUR_MS] * 2 == [clocks.find(at_ms) for at_ms in (0, 39_999)]
    assert [unix_ms] * 2 == [clocks.find(at_ms) for at_ms in (40_000, 50_000)]
    assert before == clocks.records()


async def test_clock_that_was_set_meanwhile_counts_from_the_start() -> None:
    """What was before keeps its time."""
    journal = Remembered(ago_ms=-HOUR_MS)
    unix_ms = journal._at[1] - 50_000
    journal.records.append(ClockMeasured(0, unix_ms))

    begun = await begin(journal, TIMING, listens=True)

    assert unix_ms == begun.state.clocks.find(49_999)
    assert unix_ms == begun.state.clocks.find(50_000)
    found_ms = begun.state.clocks.find(50_001)
    assert found_ms is not None and abs(unix_ms - HOUR_MS - found_ms) < 60_000
    assert begun.state.clocks == replay((await RecordingJournal.load(journal)).records).clocks


async def test_records_that_contradict_each_other_stop_the_start() -> None:
    """When they are about all jobs; the line names the incident in the log."""
    journal = Remembered()
    journal.records.append(EventsLogged(None))  # type: ignore[arg-type]

    with pytest.raises(JournalUnreadable, match=r"incident \w+ in the log"):
        await begin(journal, TIMING, listens=True)


def test_tokens_are_those_of_the_journal() -> None:
    """Another process with the same secret knows them; one with another secret does not."""
    secret, other = b"s" * 32, b"o" * 32
    token = ResumeTokens(secret).make("session")
    of_round = WorkerTokens("c", secret).make("job", 1, 2)

    assert ResumeTokens(secret).is_proof("session", token)
    assert not ResumeTokens(other).is_proof("session", token)
    assert WorkerTokens("c", secret).make("job", 1, 2) == of_round
    assert WorkerTokens("c", other).make("job", 1, 2) != of_round
    assert ResumeTokens().make("session") != ResumeTokens().make("session")


async def test_coordinator_closes_its_journal() -> None:
    """Also when it cannot listen."""

    class Closing(RecordingJournal):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    journal: Journal = (first := Closing("c" * 32))
    async with serving(Settings("127.0.0.1", 0, TIMING, journal=journal)) as running:
        assert 0 == first.closed
        second = Closing("d" * 32)
        with pytest.raises(Exception, match="cannot listen"):
            async with serving(Settings("127.0.0.1", running.port, TIMING, journal=second)):
                pass
        assert 1 == second.closed

    assert 1 == first.closed


async def test_job_is_there_after_a_start() -> None:
    """Readers find it as they left it."""
    journal = RecordingJournal("c" * 32)
    for number in range(3):
        timing = Timing(window_ms=0)
        async with serving(Settings("127.0.0.1", 0, timing, journal=journal)) as running:
            async with AsyncClient(f"127.0.0.1:{running.port}") as client:
                if number == 0:
                    await client.create_job("job", job_pb2.JobSpec(min_nodes=2, max_nodes=2))
                job = (await client.get_job("job")).job
                assert ("job", 1) == (job.job_id, job.run)
