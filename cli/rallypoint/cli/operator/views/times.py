"""Where the time of a run went: workers ran, were being started, or nothing ran.

A round counts from its sealing: until every member has started its workers they are being started,
then they run. Before the first round, and between two, nodes stop, gather and wait.
"""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import Struct

from rallypoint.v1 import job_pb2, round_pb2
from rallypoint.wire.durations import to_ms


class Times(Struct, frozen=True):
    """The parts of a run's time, in ms."""

    running: int
    starting: int
    between: int
    """Before the first round, and between two."""
    rounds: int
    """Rounds that were counted."""
    is_whole: bool
    """From the beginning of the run; else only the rounds that the coordinator remembers."""

    @property
    def total(self) -> int:
        """Return the sum of all parts."""
        return self.running + self.starting + self.between


def compute_times(job: job_pb2.Job) -> Times:
    """Return where the time of the latest run went, until now or until it ended."""
    history = [one for one in job.history if one.run == job.run]
    running = starting = 0
    for one in history:
        lasted = to_ms(one.lasted_for)
        started = min(lasted, to_ms(one.started_after)) if one.HasField("started_after") else lasted
        running, starting = running + lasted - started, starting + started
    if job.HasField("round"):
        age = to_ms(job.round.age)
        is_started = job.round.HasField("started_after")
        started = min(age, to_ms(job.round.started_after)) if is_started else age
        running, starting = running + age - started, starting + started
    is_whole = not history or history[0].begin_reason == round_pb2.ROUND_REASON_FIRST
    begin = job.opened_at if is_whole else history[0].began_at
    now_ms = _ms(job.opened_at) + to_ms(job.age)
    end_ms = _ms(job.closed_at) if job.HasField("closed_at") else now_ms
    between = max(0, end_ms - _ms(begin) - running - starting)
    rounds = len(history) + job.HasField("round")
    return Times(running, starting, between, rounds, is_whole)


def _ms(time: Timestamp) -> int:
    return time.seconds * 1000 + time.nanos // 1_000_000
