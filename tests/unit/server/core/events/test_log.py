"""The log of events: numbers, limits, what is lost, and how little a read costs."""

from __future__ import annotations

import random

import pytest

from rallypoint.server.core.model import events as module
from rallypoint.server.core.model.events import Emitted, Event, EventLog
from rallypoint.server.core.model.ids import JobId

A, B, C = JobId("a"), JobId("b"), JobId("c")


def begun(epoch: int = 0) -> EventLog:
    log = EventLog()
    log.begin(epoch)
    return log


def add(
    log: EventLog, job_id: JobId, count: int = 1, epoch: int = 0, reason: str = "round_sealed"
) -> None:
    """Add events, one in each step."""
    for _ in range(count):
        log.take(log.number([Emitted(job_id, reason, 1, 0, ())], 0, epoch))


def sequences(log: EventLog, job_id: JobId | None, after: int = 0, most: int = 1_000) -> list[int]:
    return [event.sequence for event in log.find(job_id, after, most).events]


def test_numbers_ascend_over_all_jobs() -> None:
    """A read of one job sees its own; each says up to where it has looked."""
    log = begun()
    for job_id in (A, B, A, C, A):
        add(log, job_id)

    assert [1, 2, 3, 4, 5] == sequences(log, None)
    assert [1, 3, 5] == sequences(log, A)
    assert [4, 5] == sequences(log, None, after=3)
    assert [5] == sequences(log, A, after=4)
    assert ([], 5) == log.find(B, 2, 10)
    assert [1, 2] == sequences(log, None, most=2)
    assert 2 == log.find(None, 0, 2).looked_at


def test_epoch_begins_above_all_earlier_numbers() -> None:
    """A coordinator without memory uses no number of an earlier one, and never repeats one."""
    log = begun(7)
    assert 6_999 == log.last == log.lost(None) == log.lost(A)
    add(log, A, 2, epoch=7)
    add(log, A, epoch=9)
    add(log, A, epoch=8)

    assert [7_000, 7_001, 9_000, 9_001] == sequences(log, A)


def test_oldest_event_of_a_full_job_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others keep theirs, and who reads all jobs learns of the loss."""
    monkeypatch.setattr(module, "EVENTS_PER_JOB_MAX", 3)
    log = begun()
    add(log, B)
    add(log, A, 5)

    assert [4, 5, 6] == sequences(log, A)
    assert [1, 4, 5, 6] == sequences(log, None)
    assert (3, 0, 3) == (log.lost(A), log.lost(B), log.lost(None))


def test_events_of_nodes_do_not_push_out_the_story_of_the_job() -> None:
    """One outage of a large job has more events of nodes than a job keeps events."""
    log = begun()
    add(log, A, reason="run_opened")
    add(log, A, reason="round_sealed")
    for reason in ("node_disconnected", "node_lost", "node_joined"):
        add(log, A, 300, reason=reason)
    reasons = [event.reason for event in log.find(A, 0, 1_000).events]
    assert ["run_opened", "round_sealed"] == reasons[:2]
    assert 512 == len(reasons)
    add(log, A, 200, reason="round_stopped")
    reasons = [event.reason for event in log.find(A, 0, 1_000).events]

    assert ["run_opened", "round_sealed"] == reasons[:2]
    assert (512, 200) == (len(reasons), reasons.count("round_stopped"))
    assert log.lost(A) == log.lost(None) < log.find(A, 0, 1_000).events[2].sequence
    assert reasons == [event.reason for event in log.find(None, 0, 2_000).events]


def test_oldest_event_of_all_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any job; a job without events has lost all up to that one."""
    monkeypatch.setattr(module, "EVENTS_MAX", 4)
    log = begun()
    add(log, A, 2)
    add(log, B, 4)

    assert [3, 4, 5, 6] == sequences(log, None) == sequences(log, B)
    assert [] == sequences(log, A)
    assert A not in log.jobs
    assert (2, 0, 2) == (log.lost(A), log.lost(B), log.lost(None))
    add(log, A)
    assert (2, 3) == (log.lost(A), log.lost(B))


def test_texts_are_cut() -> None:
    """One event is never long."""
    emitted = Emitted(A, "run_closed", 1, 0, (("why", "x" * 5_000), ("run", 1)))
    (event,) = begun().number([emitted], 0, 1)

    assert ("x" * 1_024, 1) == (event.fact("why"), event.fact("run"))


class Plain:
    """The same log, as simple as can be."""

    def __init__(self) -> None:
        self.kept: list[Event] = []
        self.given: list[Event] = []

    def add(self, event: Event) -> None:
        self.kept.append(event)
        self.given.append(event)
        own = [one for one in self.kept if one.job_id == event.job_id]
        if len(own) > module.EVENTS_PER_JOB_MAX:
            of_nodes = [one for one in own if one.reason.startswith("node")]
            has_many = len(of_nodes) > max(1, module.EVENTS_PER_JOB_MAX // 2)
            self.kept.remove(of_nodes[0] if has_many else own[0])
        elif len(self.kept) > module.EVENTS_MAX:
            del self.kept[0]

    def find(self, job_id: JobId | None, after: int) -> list[Event]:
        return [one for one in self.kept if one.sequence > after and job_id in (None, one.job_id)]

    def lost(self, job_id: JobId | None) -> int:
        own = (one for one in self.given if job_id in (None, one.job_id))
        return max((one.sequence for one in own if one not in self.kept), default=0)


@pytest.mark.parametrize("seed", range(5))
def test_log_agrees_with_a_plain_one(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """With any limits; nothing that is lost goes unnoticed, and copies stay as they were."""
    draw = random.Random(seed)
    monkeypatch.setattr(module, "EVENTS_PER_JOB_MAX", draw.randint(1, 12))
    monkeypatch.setattr(module, "EVENTS_MAX", draw.randint(2, 40))
    monkeypatch.setattr(module, "_DROPPED_MAX", draw.randint(0, 10))
    log, plain = begun(), Plain()
    jobs = [JobId(f"j{number}") for number in range(8)]
    for _ in range(400):
        job_id = draw.choice(jobs[: draw.randint(1, len(jobs))])
        reason = draw.choice(("node_joined", "node_joined", "round_sealed"))
        (event,) = log.number([Emitted(job_id, reason, 1, 0, ())], 0, 0)
        before = log.copy()
        shown = before.find(None, 0, 1_000)
        log.take((event,))
        plain.add(event)
        assert shown == before.find(None, 0, 1_000)
        assert log.count == len(plain.kept) <= len(log.all)
        assert len(log.all) <= 2 * log.count + 2 * max(module._DROPPED_MAX, log.count) + 2
        after = draw.randint(0, log.last)
        for subject in (None, *jobs):
            assert plain.find(subject, after) == log.find(subject, after, 1_000).events
            assert plain.lost(subject) <= log.lost(subject)
        assert plain.lost(None) == log.lost(None)
