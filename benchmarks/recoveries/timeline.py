"""What the coordinator says about the time of each round. The only place that reads its marks."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from rallypoint.client import Client
from rallypoint.v1 import round_pb2

MARKS = ("detected", "told", "stopped", "swept", "sealed", "started")
"""Marks of a round, in the order of time, each since the failure. Workers of this benchmark report
no others."""


@dataclass(frozen=True, slots=True)
class Round:
    """How a round came into being.

    marks_s: what the coordinator says, in seconds, by the name of the mark.
    """

    number: int
    marks_s: dict[str, float]


def read_rounds(address: str, job_id: str) -> list[Round]:
    """Return the rounds of a job that have followed a failure, oldest first."""
    with Client(address) as client:
        job = client.get_job(job_id).job
    rounds = [Round(one.number, _read_marks(one.timeline)) for one in job.history]
    rounds.append(Round(job.round.header.number, _read_marks(job.round.timeline)))
    return sorted((one for one in rounds if "detected" in one.marks_s), key=_number)


def _read_marks(timeline: round_pb2.RoundTimeline) -> dict[str, float]:
    known: dict[str, Duration] = {field.name: value for field, value in timeline.ListFields()}
    return {name: known[name].ToTimedelta().total_seconds() for name in MARKS if name in known}


def _number(one: Round) -> int:
    return one.number
