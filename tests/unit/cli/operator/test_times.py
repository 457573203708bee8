"""Where the time of a run went, and how times and shares are written."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.base.durations import describe_ms
from rallypoint.cli.operator.views.status import _describe_share
from rallypoint.cli.operator.views.times import compute_times
from rallypoint.v1 import job_pb2, round_pb2
from rallypoint.wire.durations import to_duration

FIRST, LATER = round_pb2.ROUND_REASON_FIRST, round_pb2.ROUND_REASON_NODE_LOST


def at(second: int) -> Timestamp:
    return Timestamp(seconds=1_000_000 + second)


def ended(
    number: int, began: int, lasted: int, started: int | None, *, run: int = 1
) -> job_pb2.RoundSummary:
    """Return a round that has ended; times in s."""
    summary = job_pb2.RoundSummary(
        run=run,
        number=number,
        begin_reason=FIRST if number == 1 else LATER,
        lasted_for=to_duration(lasted * 1000),
        began_at=at(began),
    )
    if started is not None:
        summary.started_after.CopyFrom(to_duration(started * 1000))
    return summary


def running(age: int, started: int | None) -> round_pb2.Round:
    """Return a round that has not ended; times in s."""
    found = round_pb2.Round(age=to_duration(age * 1000))
    if started is not None:
        found.started_after.CopyFrom(to_duration(started * 1000))
    return found


def job(*history: job_pb2.RoundSummary, age: int, **fields: object) -> job_pb2.Job:
    return job_pb2.Job(
        run=1,
        opened_at=at(0),
        age=to_duration(age * 1000),
        history=history,
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("found", "running_s", "starting_s", "between_s"),
    [
        (job(age=20), 0, 0, 20),
        (job(age=20, round=running(15, 2)), 13, 2, 5),
        (job(age=20, round=running(15, None)), 0, 15, 5),
        (job(ended(1, 5, 60, 1), age=100, round=running(30, 2)), 59 + 28, 3, 10),
        (job(ended(1, 5, 60, None), age=100), 0, 60, 40),
        (job(ended(1, 5, 60, 1), age=1_000, closed_at=at(65)), 59, 1, 5),
        (job(ended(9, -90, 60, 1, run=0), ended(1, 5, 60, 1), age=70), 59, 1, 10),
        (job(ended(7, 500, 60, 1), age=600, round=running(38, 1)), 59 + 37, 2, 2),
    ],
)
def test_every_second_counts_once(
    found: job_pb2.Job, running_s: int, starting_s: int, between_s: int
) -> None:
    """Of the latest run: while workers ran, while they were started, and the rest."""
    times = compute_times(found)

    assert (times.running, times.starting, times.between) == (
        running_s * 1000,
        starting_s * 1000,
        between_s * 1000,
    )
    assert times.is_whole == (not found.history or found.history[0].number != 7)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1.0s"),
        (9_999, "9.9s"),
        (10_000, "10s"),
        (59_999, "59s"),
        (60_000, "1m"),
        (61_000, "1m1s"),
        (3_599_999, "59m59s"),
        (3_600_000, "1h"),
        (3_660_000, "1h1m"),
        (3_659_000, "1h"),
        (90_000_000, "1d1h"),
        (864_000_000, "10d"),
    ],
)
def test_times_have_two_units_at_most(ms: int, text: str) -> None:
    """The largest, and the next if it is not zero."""
    assert describe_ms(ms) == text


@pytest.mark.parametrize(
    ("part", "total", "text"),
    [(0, 10, "0%"), (10, 10, "100%"), (1, 1_000, "<1%"), (999, 1_000, ">99%"), (1, 3, "33%")],
)
def test_only_all_is_everything(part: int, total: int, text: str) -> None:
    """A second of a day is not nothing."""
    assert _describe_share(part, total) == text
